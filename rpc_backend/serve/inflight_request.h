// InflightRequest: a request that waits or runs here. As long as it lives, its bytes count among
// those that are held for its caller.
//
// Threads: any. The loop thread makes it; a worker takes its message to run it, or the loop thread
// takes it to drop it. Ownership: `held` and the source's order outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "rpc_backend/codec/incoming_message.h"
#include "rpc_backend/core/call_context.h"
#include "rpc_backend/rref/rref_lifecycle.h"
#include "rpc_backend/serve/call_order.h"
#include "rpc_backend/trace/call_recorder.h"

namespace weft::rpc {

// Roughly what a request takes beside its bytes while it waits for a thread: many small requests
// take more memory than they have bytes.
inline constexpr std::uint64_t kRequestCost = 1024;

// Which request it is, and what is known when it comes.
struct RequestSource {
  worker_id_t from;
  std::uint64_t id;
  RRefLifecycle::LossCount losses_then;  // which life of that worker asks
  CallOrder& order;
  std::int64_t arrived;  // CallRecorder::now()
};

class InflightRequest : public CallContext {
 public:
  InflightRequest(const RequestSource& source, std::atomic<std::uint64_t>& held,
                  std::shared_ptr<IncomingMessage> message)
      : CallContext(message->deadline()),
        source_(source),
        type_(static_cast<MessageType>(message->type())),
        message_(std::move(message)),
        held_(held),
        bytes_(message_->bytes() + kRequestCost) {
    held_.fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~InflightRequest() { held_.fetch_sub(bytes_, std::memory_order_relaxed); }
  InflightRequest(const InflightRequest&) = delete;
  InflightRequest& operator=(const InflightRequest&) = delete;

  const RequestSource& source() const noexcept { return source_; }
  MessageType type() const noexcept { return type_; }
  // The message for whichever comes first, a worker or the loop thread that drops it; null for the
  // other.
  std::shared_ptr<IncomingMessage> take() {
    return taken_.exchange(true, std::memory_order_relaxed) ? nullptr : std::move(message_);
  }
  // What lives as long as the request because of the gradients that it brings
  // (PeerContexts::takeGradients). For the thread that runs it, then the one that answers it.
  std::shared_ptr<void>& gradients() noexcept { return gradients_; }
  // The message was taken and destroyed; the request itself still waits for a worker.
  void forgetMessage() {
    held_.fetch_sub(std::exchange(bytes_, kRequestCost) - kRequestCost, std::memory_order_relaxed);
  }

 private:
  const RequestSource source_;
  const MessageType type_;
  std::atomic<bool> taken_{false};
  std::shared_ptr<IncomingMessage> message_;
  std::atomic<std::uint64_t>& held_;
  std::uint64_t bytes_;
  std::shared_ptr<void> gradients_;
};

// A request that runs, or has run and is not answered.
struct RunningRequest {
  RequestSource source;
  CallRecorder::Entry record = std::nullopt;
  std::optional<ForkIds> created = std::nullopt;  // the reference that it is to create
  // It counts as long as this lives. Null: it is this worker's own.
  std::shared_ptr<InflightRequest> inflight = nullptr;
};

}  // namespace weft::rpc
