// PointToPoint: send, recv, recv from any, and the monitored barrier, over a Mailbox.
//
// Threads: any thread may call any member. Messages run beside the collectives.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "c10d_plugin/engine/op_recorder.h"
#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "c10d_plugin/p2p/monitored_barrier.h"
#include "c10d_plugin/p2p/waiting_messages.h"

namespace weft::process_group {

class PointToPoint {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  explicit PointToPoint(std::shared_ptr<collectives::EndpointMailbox> mailbox)
      : mailbox_(std::move(mailbox)) {}

  // `timeout` runs from now; the Work's wait() throws it. `recorded` is told how it ends.
  WorkPtr send(const at::Tensor& tensor, int to, int tag, std::chrono::milliseconds timeout,
               TrackedOp recorded);
  // `from` may be collectives::kAnyRank.
  WorkPtr receive(const at::Tensor& tensor, int from, int tag, std::chrono::milliseconds timeout,
                  TrackedOp recorded);

  // As meetAll().
  void monitoredBarrier(std::chrono::milliseconds timeout, bool wait_all_ranks) {
    meetAll(*mailbox_, barriers_.fetch_add(1), timeout, wait_all_ranks);
  }

  // The messages for which threads wait now.
  std::vector<WaitingMessage> waiting() const { return waiting_->list(); }

  void abort(const transport::Error& reason) { mailbox_->abort(reason); }
  // Fails waiting messages and ends the mailbox's thread.
  void close();

 private:
  const std::shared_ptr<collectives::EndpointMailbox> mailbox_;
  const std::shared_ptr<WaitingMessages> waiting_ = std::make_shared<WaitingMessages>();
  std::atomic<std::uint64_t> barriers_{0};  // monitored ones, so far
};

}  // namespace weft::process_group
