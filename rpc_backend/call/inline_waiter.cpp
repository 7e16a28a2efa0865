#include "rpc_backend/call/inline_waiter.h"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "transport/base/interruption.h"

namespace weft::rpc {

namespace {

thread_local std::shared_ptr<InlineWaiter> t_waiter;

// As on a thread that was just started.
bool threadIsPlain() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_ == c10::default_included_set &&
         keys.excluded_ == c10::default_excluded_set && !at::hasThreadLocalCallbacks();
}

}  // namespace

bool InlineWaiter::Handle::give(Completion& completion) const {
  if (waiter_ == nullptr) return false;
  bool asleep = false;
  {
    const std::lock_guard lock(waiter_->mutex_);
    if (waiter_->state_.load(std::memory_order_relaxed) != State::kCalled ||
        waiter_->ticket_ != ticket_) {
      return false;
    }
    waiter_->completion_ = std::move(completion);
    waiter_->state_.store(State::kServed, std::memory_order_release);
    asleep = waiter_->asleep_;
  }
  if (asleep) waiter_->served_.notify_one();
  return true;
}

InlineWaiter& InlineWaiter::own() {
  if (t_waiter == nullptr) t_waiter = std::make_shared<InlineWaiter>();
  return *t_waiter;
}

void InlineWaiter::take() {
  if (!threadIsPlain()) return;
  InlineWaiter& waiter = own();
  const std::lock_guard lock(waiter.mutex_);
  // If it is taken already, this call is made while the arguments of another are pickled, and goes
  // without a waiter.
  if (waiter.state_ == State::kFree) waiter.state_ = State::kTaken;
}

InlineWaiter::Handle InlineWaiter::claim(Completion& displaced) {
  Handle handle;
  // Only this thread takes and releases its waiter.
  if (t_waiter == nullptr || t_waiter->state_.load(std::memory_order_relaxed) == State::kFree) {
    return handle;
  }
  const std::lock_guard lock(t_waiter->mutex_);
  displaced = std::exchange(t_waiter->completion_, nullptr);
  t_waiter->state_ = State::kCalled;
  handle.waiter_ = t_waiter;
  handle.ticket_ = ++t_waiter->ticket_;
  return handle;
}

InlineWaiter::Handle InlineWaiter::claimed() {
  Handle handle;
  if (t_waiter == nullptr || t_waiter->state_.load(std::memory_order_relaxed) == State::kFree)
    return handle;
  handle.waiter_ = t_waiter;
  handle.ticket_ = t_waiter->ticket_;  // written by this thread only
  return handle;
}

void InlineWaiter::wait() {
  if (t_waiter == nullptr) return;
  InlineWaiter& waiter = *t_waiter;
  if (waiter.state_.load(std::memory_order_relaxed) == State::kFree) return;
  const auto here = [&] { return waiter.state_.load(std::memory_order_acquire) != State::kCalled; };
  if (!here()) waiter.spin_.until(here);
  bool whole = true;
  if (!here()) {
    std::unique_lock lock(waiter.mutex_);
    waiter.asleep_ = true;
    whole = transport::waitInterruptibly(waiter.served_, lock, here);
    waiter.asleep_ = false;
  }
  waiter.release();
  if (!whole) transport::raiseInterrupt();
}

void InlineWaiter::leave() {
  if (t_waiter != nullptr) t_waiter->release();
}

void InlineWaiter::release() {
  Completion completion;
  {
    const std::lock_guard lock(mutex_);
    completion = std::exchange(completion_, nullptr);
    ++ticket_;  // a later completion of the call goes to a completer
    state_ = State::kFree;
  }
  // The waiter is free by now: completing a call may make another.
  if (completion) completion();
}

}  // namespace weft::rpc
