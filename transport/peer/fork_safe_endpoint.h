// ForkSafeEndpoint: an endpoint that a forked child can do no harm to. The child has a copy of it,
// but not its threads, nor a share in its locks; its sockets, watches and shared memory are the
// parent's.
//
// In such a child every operation fails at once, without a lock, and the end of the endpoint is a
// leak: closing a handle there would take the parent's watch away.
//
// Threads, ownership: as Endpoint. Failure: kInvalidArgument in a child.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "transport/base/fork_guard.h"
#include "transport/endpoint.h"

namespace weft::transport {

class ForkSafeEndpoint final : public Endpoint {
 public:
  explicit ForkSafeEndpoint(std::unique_ptr<Endpoint> own) : own_(std::move(own)) {}
  ~ForkSafeEndpoint() override {
    if (!here()) static_cast<void>(own_.release());
  }

  const std::string& address() const override { return own_->address(); }
  Error addPeer(const PeerInfo& peer) override { return here() ? own_->addPeer(peer) : refusal(); }
  void setPeerAddress(std::int32_t rank, const std::string& address) override {
    if (here()) own_->setPeerAddress(rank, address);
  }
  void removePeer(std::int32_t rank) override {
    if (here()) own_->removePeer(rank);
  }
  void losePeer(std::int32_t rank, Error reason) override {
    if (here()) own_->losePeer(rank, std::move(reason));
  }
  Error send(std::int32_t to, Message message, std::chrono::milliseconds wait) override {
    return here() ? own_->send(to, std::move(message), wait) : refusal();
  }
  void runAfter(std::chrono::milliseconds delay, std::function<void()> task) override {
    if (here()) own_->runAfter(delay, std::move(task));
  }
  bool onLoopThread() const noexcept override { return here() && own_->onLoopThread(); }
  Driven drive(Driver kind, const std::function<bool()>& done, Deadline deadline,
               AdaptiveSpin& spin) override {
    return here() ? own_->drive(kind, done, deadline, spin) : Driven::kStopped;
  }
  void wakeDriver(Driver kind) override {
    if (here()) own_->wakeDriver(kind);
  }
  EndpointStats stats() const override { return here() ? own_->stats() : EndpointStats{}; }
  void close(std::chrono::milliseconds linger) override {
    if (here()) own_->close(linger);
  }

 private:
  bool here() const noexcept { return guard_.inOwnProcess(); }
  static Error refusal() {
    return {
        ErrorCode::kInvalidArgument,
        "this process was forked after its endpoint was opened, and has no part in it; open one "
        "in the child, or use it in the parent"};
  }

  const ForkGuard guard_;
  std::unique_ptr<Endpoint> own_;
};

}  // namespace weft::transport
