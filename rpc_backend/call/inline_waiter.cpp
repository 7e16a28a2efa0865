#include "rpc_backend/call/inline_waiter.h"

#include <chrono>
#include <utility>

#include "rpc_backend/call/driven_wait.h"
#include "rpc_backend/core/thread_state_of_torch.h"
#include "transport/base/interruption.h"

namespace weft::rpc {

namespace {

thread_local std::shared_ptr<InlineWaiter> t_waiter;

}  // namespace

bool InlineWaiter::Handle::give(Completion& completion) const {
  if (waiter_ == nullptr) return false;
  bool asleep = false;
  std::shared_ptr<transport::Endpoint> driven;
  {
    const std::lock_guard lock(waiter_->mutex_);
    if (waiter_->state_.load(std::memory_order_relaxed) != State::kCalled ||
        waiter_->ticket_ != ticket_) {
      return false;
    }
    waiter_->completion_ = std::move(completion);
    waiter_->state_.store(State::kServed, std::memory_order_release);
    asleep = waiter_->waits_ == Waits::kAsleep;
    // A thread that drives may be giving this to itself.
    if (waiter_->waits_ == Waits::kDriving && waiter_ != t_waiter) driven = waiter_->endpoint_;
  }
  if (asleep) waiter_->served_.notify_one();
  if (driven != nullptr) driven->wakeDriver(transport::Driver::kCaller);
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
  // If it is taken already, this call is made while the arguments of another one are pickled. This
  // one claims the waiter, and its wait frees it, so the other one gets none.
  if (waiter.state_ == State::kFree) waiter.state_ = State::kTaken;
}

InlineWaiter::Handle InlineWaiter::claim(Completion& displaced,
                                         const std::shared_ptr<transport::Endpoint>& endpoint) {
  Handle handle;
  // Only this thread takes and releases its waiter.
  if (t_waiter == nullptr || t_waiter->state_.load(std::memory_order_relaxed) == State::kFree) {
    return handle;
  }
  const std::lock_guard lock(t_waiter->mutex_);
  displaced = std::exchange(t_waiter->completion_, nullptr);
  t_waiter->state_ = State::kCalled;
  t_waiter->endpoint_ = endpoint;
  handle.waiter_ = t_waiter;
  handle.ticket_ = ++t_waiter->ticket_;
  return handle;
}

void InlineWaiter::wait() {
  if (t_waiter == nullptr) return;
  InlineWaiter& waiter = *t_waiter;
  if (waiter.state_.load(std::memory_order_relaxed) == State::kFree) return;
  const transport::Deadline end =
      transport::deadlineAfter(transport::mayBeInterrupted() ? transport::kInterruptEvery
                                                             : std::chrono::milliseconds::max());
  if (!waiter.served()) waiter.drive(end);
  if (!waiter.served()) waiter.sleep(end);
  waiter.release();
}

void InlineWaiter::drive(transport::Deadline end) {
  if (endpoint_ == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    waits_ = Waits::kDriving;
  }
  driveOnce(
      *endpoint_, end, [this] { return served(); }, spin_);
  const std::lock_guard lock(mutex_);
  waits_ = Waits::kNot;
}

void InlineWaiter::sleep(transport::Deadline end) {
  const auto here = [this] { return served(); };
  if (spin_.until(here)) return;
  std::unique_lock lock(mutex_);
  waits_ = Waits::kAsleep;
  served_.wait_until(lock, end, here);
  waits_ = Waits::kNot;
}

void InlineWaiter::leave() {
  if (t_waiter != nullptr) t_waiter->release();
}

void InlineWaiter::release() {
  Completion completion;
  std::shared_ptr<transport::Endpoint> endpoint;  // released without the lock
  {
    const std::lock_guard lock(mutex_);
    completion = std::exchange(completion_, nullptr);
    endpoint = std::exchange(endpoint_, nullptr);
    ++ticket_;  // a later completion of the call goes to a completer
    state_ = State::kFree;
  }
  // The waiter is free by now, because completing a call may make another call.
  const Unprofiled unprofiled;
  if (completion) completion();
}

}  // namespace weft::rpc
