#include "transport/io/timer.h"

#include <uv.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "transport/io/event_loop.h"
#include "transport/io/loop_callback.h"

namespace weft::transport {

struct Timer::State {
  uv_timer_t handle{};
  EventLoop* loop = nullptr;
  std::function<void()> callback;
};

Timer::Timer(EventLoop& loop, std::function<void()> callback) : state_(new State) {
  loop.assertInLoop();
  state_->loop = &loop;
  state_->callback = std::move(callback);
  state_->handle.data = state_;
  uv_timer_init(loop.uv(), &state_->handle);
}

Timer::~Timer() {
  state_->loop->assertInLoop();
  closeThenDelete(state_);
}

void Timer::start(std::chrono::milliseconds delay, std::chrono::milliseconds repeat) {
  state_->loop->assertInLoop();
  // libuv counts from the start of the iteration; a long callback must not shorten the delay.
  uv_update_time(state_->handle.loop);
  const auto positive = [](std::chrono::milliseconds time) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, time.count()));
  };
  uv_timer_start(
      &state_->handle,
      [](uv_timer_t* handle) {
        runGuarded("a timer", static_cast<State*>(handle->data)->callback);
      },
      positive(delay), positive(repeat));
}

void Timer::cancel() {
  state_->loop->assertInLoop();
  uv_timer_stop(&state_->handle);
}

}  // namespace weft::transport
