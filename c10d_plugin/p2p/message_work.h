// MessageWork: the Work of a send or a receive. Its wait() knows the message's own deadline. A
// message that has not completed by then is cancelled: its memory is the caller's again.
//
// Threads: end() and fail(): the mailbox's, as a completion, and those that give up; the rest: any.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>

#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/engine/op_recorder.h"
#include "c10d_plugin/engine/work.h"
#include "c10d_plugin/p2p/waiting_messages.h"

namespace weft::process_group {

class MessageWork final : public WeftWork {
 public:
  // `what`: "the receive from rank 3". `peer`: the sender, -1 for any; or the receiver, who must
  // not get the message once its caller knows of a failure: if its bytes are in transit, or only a
  // copy of them is still here, that ends the connection. The mailbox keeps this Work until the
  // message has ended, so the Work does not keep the mailbox.
  MessageWork(OpInfo info, std::string what, std::chrono::milliseconds timeout,
              const std::shared_ptr<collectives::Mailbox>& mailbox,
              std::shared_ptr<WaitingMessages> waiting, TrackedOp recorded, int peer);

  bool wait(std::chrono::milliseconds asked) override;
  void abort() override;

  void posted(collectives::Mailbox::Ticket ticket) {
    ticket_.store(ticket, std::memory_order_release);
  }
  // The first call sets the outcome; null: success.
  void end(std::exception_ptr error);
  void fail(const transport::Error& why);

 private:
  bool waitOrGiveUp(std::chrono::milliseconds limit, std::chrono::milliseconds told);
  void giveUp(const transport::Error& why);

  const std::string what_;
  const bool sends_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point deadline_;
  const std::weak_ptr<collectives::Mailbox> mailbox_;
  const std::shared_ptr<WaitingMessages> waiting_;
  TrackedOp recorded_;
  const int peer_;
  std::atomic<collectives::Mailbox::Ticket> ticket_{0};
  std::atomic<bool> ended_{false};
};

}  // namespace weft::process_group
