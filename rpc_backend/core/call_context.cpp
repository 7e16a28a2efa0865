#include "rpc_backend/core/call_context.h"

#include <algorithm>

namespace weft::rpc {

namespace {
thread_local const CallContext* t_context = nullptr;
}  // namespace

const CallContext* CallContext::current() noexcept { return t_context; }

CallScope::CallScope(const CallContext* context) noexcept : outer_(t_context) {
  t_context = context;
}

CallScope::~CallScope() { t_context = outer_; }

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
