#include "c10d_plugin/engine/op_queue.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/spin.h"
#include "transport/base/thrown.h"

namespace weft::collectives {

struct OpQueue::State {
  std::mutex mutex;
  std::condition_variable work_came;  // for threads: a task, or the end
  std::condition_variable changed;    // for drain() and waitForThreads()
  std::deque<std::unique_ptr<Task>> tasks;
  bool taken = false;  // an operation runs
  bool closed = false;
  std::size_t threads = 0;
  std::size_t blocked = 0;          // threads in a finish() that may block
  std::atomic<bool> warned{false};  // that no thread could be started
  std::atomic<bool> ready{false};   // read without the lock: a task waits and none runs

  // With the lock, after every change of what it reads.
  void refresh() { ready.store(!taken && !tasks.empty(), std::memory_order_release); }
  // With the lock. True: the caller must start a thread, which is already counted.
  bool needsThread() {
    if (tasks.empty() || threads > blocked) return false;
    ++threads;
    return true;
  }
};

namespace {

// The queue that runs a task's finish() on this thread.
thread_local const void* t_finishing = nullptr;

}  // namespace

OpQueue::OpQueue() : state_(std::make_shared<State>()) {}

OpQueue::~OpQueue() { close(); }

bool OpQueue::tryEnter() {
  const std::lock_guard lock(state_->mutex);
  if (state_->closed || state_->taken || !state_->tasks.empty()) return false;
  state_->taken = true;
  return true;
}

void OpQueue::leave() {
  bool more = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->taken = false;
    state_->refresh();
    more = !state_->tasks.empty();
  }
  if (more) state_->work_came.notify_one();
  state_->changed.notify_all();
}

bool OpQueue::push(std::unique_ptr<Task> task) {
  bool start = false;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->closed) return false;
    state_->tasks.push_back(std::move(task));
    state_->refresh();
    start = state_->needsThread();
  }
  if (!start) {
    state_->work_came.notify_one();
  } else if (!startThread(state_)) {
    workInstead(state_);
  }
  return true;
}

// Starts a thread that is already counted. False: none can be started; it stays counted.
bool OpQueue::startThread(const std::shared_ptr<State>& state) {
  const auto thrown = transport::thrownBy([&] { std::thread([state] { work(state); }).detach(); });
  if (!thrown) return true;
  if (state->warned.exchange(true)) return false;
  static_cast<void>(transport::thrownBy([&] {
    transport::log(transport::LogLevel::kWarning,
                   "a process group cannot start another thread (" + *thrown +
                       ") and runs its operations on the threads that call them");
  }));
  return false;
}

// Does the work of a thread that is counted and could not be started.
void OpQueue::workInstead(const std::shared_ptr<State>& state) {
  Lock lock(state->mutex);
  // Other threads run the task after their finish(). But this thread must run it if there is no
  // other, or if it is in a finish() itself, which may wait for the task.
  const bool mine = state->threads == 1 || t_finishing == state.get();
  if (mine) runAll(state, lock);
  leaveThreads(*state);
}

// Runs tasks on the calling thread until none waits.
void OpQueue::runAll(const std::shared_ptr<State>& state, Lock& lock) {
  while (!state->tasks.empty()) {
    if (!state->taken) {
      runFirst(state, lock);
    } else {
      state->changed.wait(lock, [&] { return !state->taken || state->tasks.empty(); });
    }
  }
}

bool OpQueue::drain(std::chrono::milliseconds limit) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, limit,
                                  [&] { return state_->tasks.empty() && !state_->taken; });
}

void OpQueue::close() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
  }
  state_->work_came.notify_all();
}

bool OpQueue::waitForThreads(std::chrono::milliseconds limit) {
  const std::size_t own = t_finishing == state_.get() ? 1 : 0;
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, limit, [&] { return state_->threads <= own; });
}

void OpQueue::work(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "weft-ops");
  transport::AdaptiveSpin spin;
  std::unique_lock lock(state->mutex);
  while (true) {
    if (!state->taken && !state->tasks.empty()) {
      runFirst(state, lock);
    } else if (state->closed && state->tasks.empty()) {
      break;
    } else {
      lock.unlock();
      spin.until([&] { return state->ready.load(std::memory_order_acquire); });
      lock.lock();
      state->work_came.wait(lock,
                            [&] { return state->tasks.empty() ? state->closed : !state->taken; });
    }
  }
  leaveThreads(*state);
}

void OpQueue::runFirst(const std::shared_ptr<State>& state, Lock& lock) {
  std::unique_ptr<Task> task = std::move(state->tasks.front());
  state->tasks.pop_front();
  state->taken = true;
  state->refresh();
  lock.unlock();
  task->run();
  lock.lock();
  state->taken = false;
  state->refresh();
  state->changed.notify_all();
  finish(state, lock, std::move(task));
}

void OpQueue::finish(const std::shared_ptr<State>& state, Lock& lock, std::unique_ptr<Task> task) {
  const bool may_block = task->finishMayBlock();
  if (may_block) ++state->blocked;
  const bool start = state->needsThread();
  lock.unlock();
  if (start && !startThread(state)) {
    const std::lock_guard again(state->mutex);
    leaveThreads(*state);
  }
  if (may_block) state->work_came.notify_one();
  const void* const outer = std::exchange(t_finishing, state.get());
  task->finish();
  task.reset();
  t_finishing = outer;
  lock.lock();
  if (may_block) --state->blocked;
  state->changed.notify_all();
}

// With the lock.
void OpQueue::leaveThreads(State& state) {
  --state.threads;
  state.changed.notify_all();
  state.work_came.notify_all();  // waiting threads find out whether a task or the end has come
}

}  // namespace weft::collectives
