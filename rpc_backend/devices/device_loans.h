// DeviceLoans: the device memory of this process that other workers still read, by message; and how
// much of theirs is read here.
//
// Threads: any; giveBack() may be one of CUDA's, which must not call CUDA. Memory that a loan kept
// is handed out to whoever ends it: its release may call CUDA and run user code, so no lock may be
// held then, and the loop thread may not do it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/wire/wire.h"

namespace weft::rpc {

// Names a message between this worker and `peer`: requests carry their sender's numbers, answers
// the numbers of what they answer.
struct MessageKey {
  worker_id_t peer = -1;
  WireKind kind = WireKind::kRequest;
  std::uint64_t id = 0;
  friend auto operator<=>(const MessageKey&, const MessageKey&) = default;
};

class DeviceLoans {
 public:
  struct Loan {
    std::shared_ptr<void> kept;
    std::function<void()> when_ended;
  };

  // `tell` lets a message's sender know that its memory has been read. It must not block or call
  // CUDA; it is not called after close().
  explicit DeviceLoans(std::function<void(const MessageKey&)> tell) : tell_(std::move(tell)) {}

  void add(const MessageKey& message, std::shared_ptr<void> kept);
  // What is to be done when the loan ends; false where there is none. One task for a loan.
  bool whenEnded(const MessageKey& message, std::function<void()> task);
  // Nothing where there is no such loan: the receiver may return it twice. Tasks are the caller's
  // to run, or not.
  Loan end(const MessageKey& message);
  std::vector<Loan> endAllOf(worker_id_t peer);
  std::size_t size() const;

  // Memory behind a message that came is read here / has been read.
  void borrow();
  void giveBack(const MessageKey& message);

  // Waits until nothing is lent or borrowed any more, at most `limit`.
  void settle(milliseconds limit) const;
  // Ends all loans, for good.
  std::vector<Loan> close();

 private:
  template <typename Predicate>
  std::vector<Loan> endIf(Predicate predicate);

  mutable std::mutex mutex_;
  mutable std::condition_variable settled_;
  std::function<void(const MessageKey&)> tell_;
  std::map<MessageKey, Loan> lent_;
  std::size_t borrowed_ = 0;
};

}  // namespace weft::rpc
