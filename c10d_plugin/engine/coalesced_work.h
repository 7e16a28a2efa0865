// CoalescedWork: several operations as one Work, whatever device each is on.
//
// Threads: any. Failure: as the parts'; the first one found.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <utility>
#include <vector>

#include "transport/base/api.h"

namespace weft::process_group {

class WEFT_API CoalescedWork final : public c10d::Work {
 public:
  explicit CoalescedWork(std::vector<c10::intrusive_ptr<c10d::Work>> parts)
      : c10d::Work(-1, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Waits for each part, so that none is still running when another has failed; throws the first
  // failure. What Ctrl-C's handler raised, which is no part's, ends the wait at once.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
};

}  // namespace weft::process_group
