#include "transport/io/event_loop.h"

#include <pthread.h>
#include <signal.h>
#include <uv.h>

#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>

#include "transport/base/check.h"
#include "transport/base/spin.h"

namespace weft::transport {

struct EventLoop::Handles {
  uv_loop_t loop{};
  uv_async_t wake{};
};

struct EventLoop::Poll::State {
  uv_poll_t handle{};
  EventLoop* loop = nullptr;
  Callback callback;
  bool closed = false;
  int wanted = 0;
};

struct EventLoop::Timer::State {
  uv_timer_t handle{};
  EventLoop* loop = nullptr;
  Task callback;
  bool closed = false;
};

Result<std::unique_ptr<EventLoop>> EventLoop::create(const std::string& thread_name, Idle idle) {
  std::unique_ptr<EventLoop> self(new EventLoop(idle));
  auto handles = std::make_unique<Handles>();
  if (const int status = uv_loop_init(&handles->loop); status != 0) {
    return Error(ErrorCode::kSystem,
                 std::string("cannot make an event loop (") + uv_err_name(status) + ")");
  }
  handles->loop.data = self.get();
  const int status = uv_async_init(&handles->loop, &handles->wake, [](uv_async_t* wake) {
    static_cast<EventLoop*>(wake->loop->data)->drain();
  });
  if (status != 0) {
    uv_loop_close(&handles->loop);
    return Error(ErrorCode::kSystem,
                 std::string("cannot make an event loop (") + uv_err_name(status) + ")");
  }
  self->handles_ = std::move(handles);

  // Signals belong to the program's own threads (Python runs its handlers on the main one).
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Error failure;
  try {
    self->thread_ = std::thread([loop = self.get()] { loop->run(); });
  } catch (const std::system_error& error) {
    failure = Error(ErrorCode::kSystem,
                    std::string("cannot start the transport's thread (") + error.what() + ")");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure) {
    uv_close(reinterpret_cast<uv_handle_t*>(&self->handles_->wake), nullptr);
    uv_run(&self->handles_->loop, UV_RUN_DEFAULT);
    uv_loop_close(&self->handles_->loop);
    self->handles_.reset();
    return failure;
  }
  self->thread_id_.store(self->thread_.get_id());
  pthread_setname_np(self->thread_.native_handle(), thread_name.substr(0, 15).c_str());
  return self;
}

EventLoop::EventLoop(Idle idle) : idle_(idle) {}

EventLoop::~EventLoop() { stop(); }

bool EventLoop::post(Task task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return false;
  posted_.push_back(std::move(task));
  if (!std::exchange(signalled_, true)) {
    // Inside the lock: stop() must not close the handle between the test and the call.
    uv_async_send(&handles_->wake);
  }
  return true;
}

void EventLoop::runAfter(std::chrono::milliseconds delay, Task task) {
  assertInLoop();
  auto slot = std::make_shared<Timer*>(nullptr);
  auto* timer = new Timer(*this, [this, slot, task = std::move(task)] {
    delayed_.erase(*slot);
    task();
    delete *slot;
  });
  *slot = timer;
  delayed_.insert(timer);
  timer->start(delay);
}

void EventLoop::assertInLoop() const noexcept {
  WEFT_CHECK(inLoop(), "this belongs to the loop thread");
}

void EventLoop::run() {
  thread_id_.store(std::this_thread::get_id());
  AdaptiveSpin spin;
  const auto found_work = [&] {
    const std::uint64_t before = work_;
    uv_run(&handles_->loop, UV_RUN_NOWAIT);
    return work_ != before;
  };
  while (true) {
    const std::uint64_t before = work_;
    if (uv_run(&handles_->loop, UV_RUN_ONCE) == 0) break;
    // A timer alone is no sign that more will come.
    if (work_ == before || idle_ == Idle::kSleep) continue;
    while (spin.until(found_work)) {
    }
  }
}

void EventLoop::drain() {
  ++work_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    signalled_ = false;
    running_.swap(posted_);
  }
  for (Task& task : running_) {
    task();
    task = nullptr;
  }
  running_.clear();
  if (running_.capacity() > 4096) running_.shrink_to_fit();
}

void EventLoop::stop() {
  if (abandoned_) return;
  WEFT_CHECK(!inLoop(), "the loop cannot stop itself");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || handles_ == nullptr) return;
    // Dropped on the loop thread: what they own may be its handles.
    auto dropped = std::make_shared<std::vector<Task>>(std::exchange(posted_, {}));
    posted_.push_back([this, dropped] {
      dropped->clear();
      for (Timer* timer : std::exchange(delayed_, {}))
        delete timer;
      uv_close(reinterpret_cast<uv_handle_t*>(&handles_->wake), nullptr);
    });
    stopping_ = true;
    uv_async_send(&handles_->wake);
  }
  thread_.join();
  const int status = uv_loop_close(&handles_->loop);
  WEFT_CHECK(status == 0, "a handle of the loop was left open");
  handles_.reset();
}

void EventLoop::abandonAfterFork() noexcept {
  // The thread and the handles are the parent's. Leaked on purpose: there is nothing to join,
  // and the kernel's side of the handles is shared.
  abandoned_ = true;
  static_cast<void>(handles_.release());
  static_cast<void>(new std::thread(std::move(thread_)));
}

EventLoop::Poll::Poll(EventLoop& loop, int fd, Callback callback) : state_(new State) {
  loop.assertInLoop();
  state_->loop = &loop;
  state_->callback = std::move(callback);
  state_->handle.data = state_;
  const int status = uv_poll_init(&loop.handles_->loop, &state_->handle, fd);
  WEFT_CHECK(status == 0, "a descriptor cannot be polled");
}

EventLoop::Poll::~Poll() {
  if (state_->loop->abandoned_) return;
  state_->loop->assertInLoop();
  state_->closed = true;
  // The callback may be the one running now: it lives until libuv has let go.
  uv_close(reinterpret_cast<uv_handle_t*>(&state_->handle),
           [](uv_handle_t* handle) { delete static_cast<State*>(handle->data); });
}

void EventLoop::Poll::want(bool readable, bool writable) {
  state_->loop->assertInLoop();
  const int wanted = (readable ? UV_READABLE : 0) | (writable ? UV_WRITABLE : 0);
  if (wanted == state_->wanted) return;
  state_->wanted = wanted;
  if (wanted == 0) {
    uv_poll_stop(&state_->handle);
    return;
  }
  uv_poll_start(&state_->handle, wanted, [](uv_poll_t* handle, int status, int events) {
    auto* state = static_cast<State*>(handle->data);
    if (state->closed) return;
    ++state->loop->work_;
    if (status < 0) state->wanted = 0;  // libuv has stopped it
    state->callback(
        {(events & UV_READABLE) != 0, (events & UV_WRITABLE) != 0, status < 0 ? -status : 0});
  });
}

EventLoop::Timer::Timer(EventLoop& loop, Task callback) : state_(new State) {
  loop.assertInLoop();
  state_->loop = &loop;
  state_->callback = std::move(callback);
  state_->handle.data = state_;
  uv_timer_init(&loop.handles_->loop, &state_->handle);
}

EventLoop::Timer::~Timer() {
  if (state_->loop->abandoned_) return;
  state_->loop->assertInLoop();
  state_->closed = true;
  uv_close(reinterpret_cast<uv_handle_t*>(&state_->handle),
           [](uv_handle_t* handle) { delete static_cast<State*>(handle->data); });
}

void EventLoop::Timer::start(std::chrono::milliseconds delay, std::chrono::milliseconds repeat) {
  state_->loop->assertInLoop();
  // libuv counts from the start of the iteration; a long callback must not shorten the delay.
  uv_update_time(state_->handle.loop);
  const auto positive = [](std::chrono::milliseconds time) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, time.count()));
  };
  uv_timer_start(
      &state_->handle,
      [](uv_timer_t* handle) {
        auto* state = static_cast<State*>(handle->data);
        if (!state->closed) state->callback();
      },
      positive(delay), positive(repeat));
}

void EventLoop::Timer::cancel() {
  state_->loop->assertInLoop();
  uv_timer_stop(&state_->handle);
}

}  // namespace weft::transport
