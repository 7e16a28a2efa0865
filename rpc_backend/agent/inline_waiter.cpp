#include "rpc_backend/agent/inline_waiter.h"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

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
  // Taken already: this is a call made while the arguments of another are pickled. That one goes
  // without.
  if (waiter.state_ == State::kFree) waiter.state_ = State::kTaken;
}

InlineWaiter::Handle InlineWaiter::claim(Completion& displaced) {
  Handle handle;
  // Only this thread takes its waiter and rises from it.
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

void InlineWaiter::wait() {
  if (t_waiter == nullptr) return;
  InlineWaiter& waiter = *t_waiter;
  if (waiter.state_.load(std::memory_order_relaxed) == State::kFree) return;
  const auto here = [&] { return waiter.state_.load(std::memory_order_acquire) != State::kCalled; };
  if (!here()) waiter.spin_.until(here);
  if (!here()) {
    std::unique_lock lock(waiter.mutex_);
    waiter.asleep_ = true;
    waiter.served_.wait(lock, here);
    waiter.asleep_ = false;
  }
  waiter.release();
}

void InlineWaiter::leave() {
  if (t_waiter != nullptr) t_waiter->release();
}

void InlineWaiter::release() {
  Completion completion;
  {
    const std::lock_guard lock(mutex_);
    completion = std::exchange(completion_, nullptr);
    ++ticket_;  // what comes later for the call goes elsewhere
    state_ = State::kFree;
  }
  // Free by now: to complete a call may mean to make another.
  if (completion) completion();
}

}  // namespace weft::rpc
