// CallCanceller: ends the calls that nobody waits for any more, because their time is up or their
// caller gave them up, and tells their callees.
//
// Threads: any. Calls expire on the loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "rpc_backend/call/call_completer.h"
#include "rpc_backend/call/call_table.h"
#include "rpc_backend/codec/message_sender.h"

namespace weft::rpc {

// torch's text for a timeout, which programs look for. `inherited`: it is what was left of another
// call's.
std::string timeoutText(milliseconds timeout, bool inherited);

class CallCanceller {
 public:
  // The parts live as long as this. `cancel_own`: tells this worker of its own call; loop thread.
  CallCanceller(AgentContext& context, MessageSender& sender, CallTable& calls,
                CallCompleter& completer, std::function<void(std::uint64_t id)> cancel_own)
      : context_(context),
        sender_(sender),
        calls_(calls),
        completer_(completer),
        cancel_own_(std::move(cancel_own)) {}

  // A call in the table has this deadline: looks then for those whose time is up.
  void watch(Clock::time_point deadline);
  // Nobody waits for that call any more: it fails, and its callee is told.
  void cancel(const JitFuture& answer) { cancel(calls_.takeCallOf(answer)); }
  void cancel(const InlineWaiter::Handle& waiter) { cancel(calls_.takeCallOf(waiter)); }

 private:
  void cancel(std::optional<PendingCall> call);
  // Loop thread. Tells the callee that nobody waits any more.
  void giveUp(worker_id_t callee, MessageType type, std::uint64_t id);
  void expire();

  AgentContext& context_;
  MessageSender& sender_;
  CallTable& calls_;
  CallCompleter& completer_;
  const std::function<void(std::uint64_t id)> cancel_own_;
  std::mutex timer_mutex_;
  Clock::time_point timer_armed_ = Clock::time_point::max();
};

}  // namespace weft::rpc
