#include "rpc_backend/agent/inline_waiter.h"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

namespace weft::rpc {

namespace {

thread_local std::shared_ptr<AnswerSeat> t_seat;

// As on a thread that was just started.
bool threadIsPlain() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_ == c10::default_included_set &&
         keys.excluded_ == c10::default_excluded_set && !at::hasThreadLocalCallbacks();
}

}  // namespace

bool AnswerSeat::Place::give(Completion& completion) const {
  if (seat_ == nullptr) return false;
  bool asleep = false;
  {
    const std::lock_guard lock(seat_->mutex_);
    if (seat_->state_.load(std::memory_order_relaxed) != State::kCalled ||
        seat_->ticket_ != ticket_) {
      return false;
    }
    seat_->completion_ = std::move(completion);
    seat_->state_.store(State::kServed, std::memory_order_release);
    asleep = seat_->asleep_;
  }
  if (asleep) seat_->served_.notify_one();
  return true;
}

AnswerSeat& AnswerSeat::own() {
  if (t_seat == nullptr) t_seat = std::make_shared<AnswerSeat>();
  return *t_seat;
}

void AnswerSeat::take() {
  if (!threadIsPlain()) return;
  AnswerSeat& seat = own();
  const std::lock_guard lock(seat.mutex_);
  // Taken already: this is a call made while the arguments of another are pickled. That one goes
  // without.
  if (seat.state_ == State::kFree) seat.state_ = State::kTaken;
}

AnswerSeat::Place AnswerSeat::claim(Completion& displaced) {
  Place place;
  // Only this thread takes its seat and rises from it.
  if (t_seat == nullptr || t_seat->state_.load(std::memory_order_relaxed) == State::kFree) {
    return place;
  }
  const std::lock_guard lock(t_seat->mutex_);
  displaced = std::exchange(t_seat->completion_, nullptr);
  t_seat->state_ = State::kCalled;
  place.seat_ = t_seat;
  place.ticket_ = ++t_seat->ticket_;
  return place;
}

void AnswerSeat::wait() {
  if (t_seat == nullptr) return;
  AnswerSeat& seat = *t_seat;
  if (seat.state_.load(std::memory_order_relaxed) == State::kFree) return;
  const auto here = [&] { return seat.state_.load(std::memory_order_acquire) != State::kCalled; };
  if (!here()) seat.spin_.until(here);
  if (!here()) {
    std::unique_lock lock(seat.mutex_);
    seat.asleep_ = true;
    seat.served_.wait(lock, here);
    seat.asleep_ = false;
  }
  seat.rise();
}

void AnswerSeat::leave() {
  if (t_seat != nullptr) t_seat->rise();
}

void AnswerSeat::rise() {
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
