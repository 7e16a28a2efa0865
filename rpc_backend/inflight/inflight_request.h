// InflightRequest: a request that waits or runs here. It counts its bytes among those of its
// caller, however it ends.
//
// Threads: any. The loop thread makes it; a worker takes its message to run it, or the loop thread
// to drop it. `held` and the caller's order outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "rpc_backend/codec/incoming_message.h"
#include "rpc_backend/core/call_context.h"
#include "rpc_backend/inflight/call_order.h"
#include "rpc_backend/rref/rref_lifecycle.h"
#include "rpc_backend/trace/call_recorder.h"

namespace weft::rpc {

// What a request takes beside its bytes, roughly, while it waits for a thread: many small ones take
// more memory than they have bytes.
inline constexpr std::uint64_t kRequestCost = 1024;

// Who made a request, and how it is known there.
struct Asker {
  worker_id_t from;
  std::uint64_t id;
  RRefLifecycle::Seen seen;  // which life of that worker asks
  CallOrder& order;
  std::int64_t arrived;                           // CallRecorder::now()
  CallRecorder::Entry record = std::nullopt;      // once it runs
  std::optional<ForkIds> created = std::nullopt;  // the reference that it is to create, likewise
};

class InflightRequest : public CallContext {
 public:
  InflightRequest(const Asker& asker, std::atomic<std::uint64_t>& held,
                  std::shared_ptr<IncomingMessage> message)
      : CallContext(message->deadline()),
        asker_(asker),
        type_(static_cast<MessageType>(message->type())),
        message_(std::move(message)),
        held_(held),
        bytes_(message_->bytes() + kRequestCost) {
    held_.fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~InflightRequest() { held_.fetch_sub(bytes_, std::memory_order_relaxed); }
  InflightRequest(const InflightRequest&) = delete;
  InflightRequest& operator=(const InflightRequest&) = delete;

  const Asker& asker() const noexcept { return asker_; }
  MessageType type() const noexcept { return type_; }
  // For who comes first, a worker or the loop thread that drops it; null for the other.
  std::shared_ptr<IncomingMessage> take() {
    return taken_.exchange(true, std::memory_order_relaxed) ? nullptr : std::move(message_);
  }
  // Who has taken the message has dropped it. The rest waits for a worker all the same.
  void forgetMessage() {
    held_.fetch_sub(std::exchange(bytes_, kRequestCost) - kRequestCost, std::memory_order_relaxed);
  }

 private:
  const Asker asker_;
  const MessageType type_;
  std::atomic<bool> taken_{false};
  std::shared_ptr<IncomingMessage> message_;
  std::atomic<std::uint64_t>& held_;
  std::uint64_t bytes_;
};

}  // namespace weft::rpc
