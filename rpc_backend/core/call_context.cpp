#include "rpc_backend/core/call_context.h"

#include <algorithm>
#include <utility>

namespace weft::rpc {

namespace {
thread_local const CallContext* t_context = nullptr;

CallContext::Clock::time_point latest(
    const std::vector<std::shared_ptr<const CallContext>>& calls) noexcept {
  auto last = CallContext::Clock::time_point::min();
  for (const auto& call : calls)
    last = std::max(last, call == nullptr ? CallContext::kNever : call->deadline());
  return calls.empty() ? CallContext::kNever : last;
}
}  // namespace

CallContext::CallContext(std::vector<std::shared_ptr<const CallContext>> calls)
    : calls_(std::move(calls)), deadline_(latest(calls_)) {}

bool CallContext::allCancelled() const noexcept {
  return std::all_of(calls_.begin(), calls_.end(),
                     [](const auto& call) { return call != nullptr && call->isCancelled(); });
}

const CallContext* CallContext::current() noexcept { return t_context; }

CallScope::CallScope(const CallContext* context) noexcept : outer_(t_context) {
  t_context = context;
}

CallScope::~CallScope() { t_context = outer_; }

CallbackContext::CallbackContext() noexcept {
  if (t_context == nullptr) return;
  call_ = t_context->weak_from_this();
  deadline_ = t_context->deadline();
}

bool CallbackContext::isCurrent() const noexcept {
  if (t_context == nullptr || call_.expired()) return false;
  const auto running = t_context->weak_from_this();
  return !call_.owner_before(running) && !running.owner_before(call_);
}

std::optional<double> secondsLeft() noexcept {
  if (t_context == nullptr || !t_context->hasDeadline()) return std::nullopt;
  const std::chrono::duration<double> left = t_context->deadline() - CallContext::Clock::now();
  return std::max(0.0, left.count());
}

bool isCancelled() noexcept { return t_context != nullptr && t_context->isCancelled(); }

CallTime timeOfCall(std::chrono::milliseconds own, CallContext::Clock::time_point now) noexcept {
  if (t_context == nullptr || !t_context->hasDeadline()) return {own};
  if (t_context->deadline() <= now) return {std::chrono::milliseconds(0), true, true};
  // Rounded up: 0 would be no limit.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(t_context->deadline() - now);
  if (own.count() != 0 && own <= left) return {own};
  return {left, true};
}

}  // namespace weft::rpc
