#include "transport/io/event_loop.h"

#include <pthread.h>
#include <signal.h>
#include <uv.h>

#include <memory>
#include <system_error>
#include <utility>

#include "transport/base/check.h"
#include "transport/io/loop_callback.h"
#include "transport/io/timer.h"

namespace weft::transport {

struct EventLoop::Handles {
  uv_loop_t loop{};
  uv_async_t wake{};
};

namespace {

constexpr int kMoreRounds = 3;

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::create(const std::string& thread_name, Idle idle) {
  std::unique_ptr<EventLoop> self(new EventLoop(idle));
  auto handles = std::make_unique<Handles>();
  int status = uv_loop_init(&handles->loop);
  if (status == 0) {
    handles->loop.data = self.get();
    status = uv_async_init(&handles->loop, &handles->wake, [](uv_async_t* wake) {
      static_cast<EventLoop*>(wake->loop->data)->drain();
    });
    if (status != 0) uv_loop_close(&handles->loop);
  }
  if (status != 0) {
    return Error(ErrorCode::kSystem,
                 std::string("cannot make an event loop (") + uv_err_name(status) + ")");
  }
  self->handles_ = std::move(handles);
  self->turns_.watch(uv_backend_fd(&self->handles_->loop));

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
    self->closeHandles();
    return failure;
  }
  pthread_setname_np(self->thread_.native_handle(), thread_name.substr(0, 15).c_str());
  return self;
}

EventLoop::EventLoop(Idle idle) : idle_(idle) {}

// For a loop that no thread runs.
void EventLoop::closeHandles() {
  uv_close(reinterpret_cast<uv_handle_t*>(&handles_->wake), nullptr);
  uv_run(&handles_->loop, UV_RUN_DEFAULT);
  uv_loop_close(&handles_->loop);
  handles_.reset();
}

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
  const auto slot = delayed_.emplace(delayed_.end());
  *slot = std::make_unique<Timer>(*this, [this, slot, task = std::move(task)] {
    delayed_.erase(slot);
    task();
  });
  (*slot)->start(delay);
}

uv_loop_s* EventLoop::uv() noexcept { return &handles_->loop; }

void EventLoop::assertInLoop() const noexcept {
  WEFT_CHECK(inLoop(), "this belongs to the loop thread");
}

// --- whose turn it is ---

void EventLoop::run() {
  AdaptiveSpin spin;
  const auto found_work = [&] { return runReady() && alive_; };
  while (true) {
    {
      const std::lock_guard lock(running_mutex_);
      const bool shared = turns_.shared();
      if (shared) turns_.take();
      // A timer alone is no sign that more will come.
      if (runReady(/*wait=*/!shared) && idle_ == Idle::kSpin) {
        while (alive_ && spin.until(found_work)) {
        }
      }
      if (!alive_) return;
      if (turns_.shared()) turns_.give(nextTimer());
    }
    if (turns_.shared()) turns_.wait(LoopTurns::kOwn, Deadline::max());
  }
}

Driven EventLoop::drive(Driver kind, const std::function<bool()>& done, Deadline deadline,
                        AdaptiveSpin& spin) {
  WEFT_CHECK(!inLoop(), "the loop thread cannot wait for itself");
  const bool first_ever = !turns_.shared();
  if (const auto refused = turns_.enter(kind)) return *refused;
  // By scope, so that nobody waits for a driver whose done() threw, or who found no memory.
  const auto leave = [&](LoopTurns* turns) { turns->leave(kind); };
  const std::unique_ptr<LoopTurns, decltype(leave)> inside(&turns_, leave);
  Driven how = Driven::kDone;
  if (first_ever) post([] {});  // its own thread takes turns from now on
  bool taken = false;
  const auto give = [&](LoopTurns* turns) {
    if (std::exchange(taken, false)) turns->give(nextTimer());
  };
  const auto found = [&] {
    if (!std::exchange(taken, true)) turns_.take();
    runReady();
    return done();
  };
  for (bool first = true;; first = false) {
    if (done()) break;
    if (turns_.stopped()) how = Driven::kStopped;
    if (std::chrono::steady_clock::now() >= deadline) how = Driven::kLate;
    if (how != Driven::kDone) break;
    std::unique_lock lock(running_mutex_, std::defer_lock);
    const std::unique_ptr<LoopTurns, decltype(give)> taking(&turns_, give);
    bool came = false;
    if (first && lock.try_lock()) {
      came = spin.until(found);
    } else {
      if (turns_.wait(LoopTurns::of(kind), deadline) == LoopGate::Woken::kRung) continue;
      lock.lock();
      came = found() || spin.until(found);
    }
    if (came) break;
  }
  return how;
}

// With running_mutex_. True: something came from outside.
bool EventLoop::runReady(bool wait) {
  const std::uint64_t before = work_;
  loop_thread_ = std::this_thread::get_id();
  alive_ = uv_run(&handles_->loop, wait ? UV_RUN_ONCE : UV_RUN_NOWAIT) != 0;
  // The kernel learns of a new watch in the round after the one that made it.
  for (int round = 0; round < kMoreRounds && uv_backend_timeout(&handles_->loop) == 0; ++round)
    alive_ = uv_run(&handles_->loop, UV_RUN_NOWAIT) != 0;
  loop_thread_ = std::thread::id();
  return work_ != before;
}

// With running_mutex_.
Deadline EventLoop::nextTimer() {
  uv_update_time(&handles_->loop);
  const int timeout = uv_backend_timeout(&handles_->loop);
  return timeout < 0 ? Deadline::max()
                     : std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout);
}

// --- tasks ---

void EventLoop::drain() {
  ++work_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    signalled_ = false;
    running_.swap(posted_);
  }
  for (Task& task : running_) {
    runGuarded("a task", task);
    task = nullptr;
  }
  running_.clear();
  if (running_.capacity() > 4096) running_.shrink_to_fit();
}

void EventLoop::stop() {
  WEFT_CHECK(!inLoop(), "the loop cannot stop itself");
  turns_.stop();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || handles_ == nullptr) return;
    // Dropped on the loop thread: what they own may be its handles.
    auto dropped = std::make_shared<std::vector<Task>>(std::exchange(posted_, {}));
    posted_.push_back([this, dropped] {
      dropped->clear();
      delayed_.clear();
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

}  // namespace weft::transport
