// WeftWork: the handle of one operation, as torch's Work.
//
// Threads: wait(), getFuture() and the queries from any thread; settle() and complete() once, by
// the thread that ran the operation. Callbacks run in complete(), with no lock held.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include "c10d_plugin/engine/op_recorder.h"
#include "transport/base/interruption.h"

namespace weft::process_group {

using TensorLists = std::vector<std::vector<at::Tensor>>;

// What an operation is, before it runs. `title` is static text such as "weft:all_reduce".
struct OpInfo {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;
  std::optional<std::vector<at::Tensor>> inputs;  // for the profiler
  TensorLists outputs;                            // for result() and the future
};

// How it is to run.
struct OpParams {
  const char* title = nullptr;
  std::chrono::milliseconds timeout{};  // from when the operation begins to run
  bool async = true;
  const c10d::Backend* group = nullptr;  // alive during Engine::submit(); for the record
};

class WeftWork : public c10d::Work {
 public:
  WeftWork(int rank, OpInfo info);

  // Throws the operation's error, with what was called; throws "Timed out" when `timeout` (0: none)
  // passes first, which leaves the operation running: the group's own timeout ends it. Ctrl-C
  // likewise ends only the wait, and throws what its handler raised.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override;
  void abort() override;

  // Sets the outcome, once; null means success. `call`: what wait() adds to the error's text. True:
  // complete() will run callbacks. Only futures made before this have any.
  bool settle(std::exception_ptr error, std::optional<OpRecord> call = {});
  // Publishes the outcome. After settle(), once.
  void complete();

  // Without a limit, and whatever comes of it; Ctrl-C does not end it.
  void waitUntilCompleted();

  void setSource(int rank) { source_.store(rank); }
  const char* title() const noexcept { return title_; }

 protected:
  // `limit` kNoTimeout: none. Throws nothing.
  transport::Waited waitFor(std::chrono::milliseconds limit);

 private:
  void fill(const c10::intrusive_ptr<c10::ivalue::Future>& future) const;

  const char* title_;
  TensorLists outputs_;
  std::atomic<int> source_{-1};
  std::atomic<bool> finished_{false};  // read without the lock
  // Under mutex_ of the base. The first getFuture() makes the future.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<c10::ivalue::Future> unfilled_;  // complete() has to fill it
  bool settled_ = false;                              // the outcome is known
  std::exception_ptr error_;
  std::optional<OpRecord> call_;  // does not change once the outcome is known
};

}  // namespace weft::process_group
