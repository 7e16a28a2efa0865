// CallCanceller: ends calls whose time is up or whose caller gave them up, and tells their callees.
//
// Threads: any. Calls expire on the loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "rpc_backend/call/call_completer.h"
#include "rpc_backend/call/call_table.h"
#include "rpc_backend/codec/message_sender.h"

namespace weft::rpc {

// torch's text for a timeout, which programs look for. `inherited`: the timeout is what was left of
// another call's.
std::string timeoutText(milliseconds timeout, bool inherited);

class CallCanceller {
 public:
  // The parts live as long as this. `cancel_own`: cancels a call to this worker itself; called on
  // the loop thread.
  CallCanceller(AgentContext& context, MessageSender& sender, CallTable& calls,
                CallCompleter& completer, std::function<void(std::uint64_t id)> cancel_own)
      : context_(context),
        sender_(sender),
        calls_(calls),
        completer_(completer),
        cancel_own_(std::move(cancel_own)) {}

  // A call in the table has this deadline; calls whose time is up are ended then.
  void watch(Clock::time_point deadline);
  // Fails that call, for which nobody waits any more, and tells its callee.
  void cancel(const JitFuture& answer) { cancel(calls_.takeCallOf(answer)); }

 private:
  void cancel(std::optional<PendingCall> call);
  // Loop thread. Tells the callee that nobody waits for the call any more.
  void giveUp(worker_id_t callee, MessageType type, std::uint64_t id);
  // That deadline's timer runs.
  void expire(Clock::time_point deadline);

  AgentContext& context_;
  MessageSender& sender_;
  CallTable& calls_;
  CallCompleter& completer_;
  const std::function<void(std::uint64_t id)> cancel_own_;
  std::mutex timers_mutex_;
  std::set<Clock::time_point> timers_;  // the deadlines that have one: each came before the others
};

}  // namespace weft::rpc
