#include "rpc_backend/worker_pool.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "rpc_backend/log.h"

namespace weft::rpc {

struct WorkerPool::State {
  std::string name;
  mutable std::mutex mutex;
  std::condition_variable work_arrived;
  std::condition_variable thread_left;
  std::deque<std::function<void()>> queue;
  std::vector<std::thread> threads;
  std::size_t idle = 0;      // threads waiting for work
  std::size_t running = 0;   // threads inside a task
  std::size_t alive = 0;
  bool stopped = false;
};

WorkerPool::WorkerPool(std::string name, std::size_t max_threads)
    : max_threads_(max_threads), state_(std::make_shared<State>()) {
  state_->name = std::move(name);
}

WorkerPool::~WorkerPool() { stop(std::chrono::milliseconds(0)); }

void WorkerPool::work(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    ++state->idle;
    state->work_arrived.wait(lock, [&] { return state->stopped || !state->queue.empty(); });
    --state->idle;
    if (state->queue.empty()) break;   // stopped, and nothing left to run
    std::function<void()> task = std::move(state->queue.front());
    state->queue.pop_front();
    ++state->running;
    lock.unlock();
    try {
      task();
    } catch (const std::exception& error) {
      // Tasks report their own failures; what still arrives here must not end the process.
      logWarning("a task of pool '" + state->name + "' threw: " + error.what());
    }
    task = nullptr;   // destroyed without the lock: it may own Python objects
    lock.lock();
    --state->running;
  }
  --state->alive;
  state->thread_left.notify_all();
}

bool WorkerPool::run(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  if (state_->stopped) return false;
  state_->queue.push_back(std::move(task));
  if (state_->idle >= state_->queue.size() || state_->alive >= max_threads_) {
    state_->work_arrived.notify_one();
    return true;
  }
  state_->threads.emplace_back([state = state_] { work(state); });
  pthread_setname_np(state_->threads.back().native_handle(), state_->name.substr(0, 15).c_str());
  ++state_->alive;
  return true;
}

void WorkerPool::stop(std::chrono::milliseconds grace, Waiting waiting) {
  std::vector<std::thread> threads;
  std::deque<std::function<void()>> dropped;
  bool all_left = true;
  {
    std::unique_lock lock(state_->mutex);
    state_->stopped = true;
    if (waiting == Waiting::kDrop || state_->alive == 0) dropped.swap(state_->queue);
    threads.swap(state_->threads);
    state_->work_arrived.notify_all();
    all_left = state_->thread_left.wait_for(lock, grace, [&] { return state_->alive == 0; });
  }
  if (!all_left) {
    logWarning("a thread of pool '" + state_->name + "' is still running user code after " +
               std::to_string(grace.count()) + " ms; it is left to itself");
  }
  for (std::thread& thread : threads) {
    if (all_left) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

std::size_t WorkerPool::threads() const {
  const std::lock_guard lock(state_->mutex);
  return state_->alive;
}

std::size_t WorkerPool::idleThreads() const {
  const std::lock_guard lock(state_->mutex);
  return max_threads_ - state_->running;
}

}  // namespace weft::rpc
