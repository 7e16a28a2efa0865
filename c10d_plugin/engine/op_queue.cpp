#include "c10d_plugin/engine/op_queue.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "transport/base/spin.h"

namespace weft::collectives {

struct OpQueue::State {
  std::mutex mutex;
  std::condition_variable work_came;  // for threads: a task, or the end
  std::condition_variable changed;    // for drain() and waitForThreads()
  std::deque<std::unique_ptr<Task>> tasks;
  bool taken = false;  // an operation runs
  bool closed = false;
  std::size_t threads = 0;
  std::size_t blocked = 0;         // threads in a finish() that may block
  std::atomic<bool> ready{false};  // read without the lock: a task waits and none runs

  // With the lock, after every change of what it reads.
  void refresh() { ready.store(!taken && !tasks.empty(), std::memory_order_release); }
  // With the lock. True: the caller must start a thread, which is already counted.
  bool needsThread() {
    if (tasks.empty() || threads > blocked || threads >= kMostThreads) return false;
    ++threads;
    return true;
  }
};

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
  if (start) {
    std::thread([state = state_] { work(state); }).detach();
  } else {
    state_->work_came.notify_one();
  }
  return true;
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
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, limit, [&] { return state_->threads == 0; });
}

void OpQueue::work(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "weft-ops");
  transport::AdaptiveSpin spin;
  std::unique_lock lock(state->mutex);
  while (true) {
    if (state->taken || state->tasks.empty()) {
      if (state->closed && state->tasks.empty()) break;
      lock.unlock();
      spin.until([&] { return state->ready.load(std::memory_order_acquire); });
      lock.lock();
      state->work_came.wait(lock, [&] {
        return (!state->taken && !state->tasks.empty()) || (state->closed && state->tasks.empty());
      });
      continue;
    }
    std::unique_ptr<Task> task = std::move(state->tasks.front());
    state->tasks.pop_front();
    state->taken = true;
    state->refresh();
    lock.unlock();
    task->run();
    lock.lock();
    state->taken = false;
    state->refresh();
    const bool may_block = task->finishMayBlock();
    if (may_block) ++state->blocked;
    const bool start = state->needsThread();
    lock.unlock();
    if (start) std::thread([state] { work(state); }).detach();
    if (may_block) state->work_came.notify_one();
    task->finish();
    task.reset();
    lock.lock();
    if (may_block) --state->blocked;
    state->changed.notify_all();
  }
  --state->threads;
  state->changed.notify_all();
}

}  // namespace weft::collectives
