#include "rpc_backend/worker_pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "rpc_backend/log.h"
#include "transport/spin.h"

namespace weft::rpc {

namespace {
// How long tasks may wait while none begins before another thread is started.
constexpr std::chrono::milliseconds kStuckAfter{1};
}  // namespace

struct WorkerPool::State {
  std::string name;
  std::size_t ready = 1;
  std::size_t limit = 1;
  mutable std::mutex mutex;
  std::condition_variable work_arrived;
  std::condition_variable crowded;  // wakes the watcher
  std::condition_variable thread_left;
  std::deque<std::function<void()>> queue;
  // Read without the lock by threads that spin: only a hint that looking is worth while.
  std::atomic<std::size_t> waiting{0};
  std::vector<std::thread> threads;
  std::size_t sleeping = 0;  // workers in work_arrived.wait
  std::size_t spinning = 0;  // workers that look for work
  std::size_t running = 0;   // workers inside a task
  std::size_t workers = 0;
  std::size_t alive = 0;    // workers and the watcher
  std::uint64_t begun = 0;  // tasks, ever
  bool watched = false;
  bool stopped = false;

  void take(std::function<void()>& task) {
    task = std::move(queue.front());
    queue.pop_front();
    waiting.store(queue.size(), std::memory_order_relaxed);
    ++begun;
    ++running;
  }
};

WorkerPool::WorkerPool(std::string name, std::size_t ready, std::size_t limit)
    : limit_(limit), state_(std::make_shared<State>()) {
  state_->name = std::move(name);
  state_->ready = std::min(ready, limit);
  state_->limit = limit;
}

WorkerPool::~WorkerPool() { stop(std::chrono::milliseconds(0)); }

void WorkerPool::start(const std::shared_ptr<State>& state,
                       void (*body)(const std::shared_ptr<State>&), const char* suffix) {
  state->threads.emplace_back([state, body] {
    body(state);
    const std::lock_guard lock(state->mutex);
    --state->alive;
    state->thread_left.notify_all();
  });
  ++state->alive;
  pthread_setname_np(state->threads.back().native_handle(),
                     (state->name + suffix).substr(0, 15).c_str());
}

void WorkerPool::work(const std::shared_ptr<State>& state) {
  transport::AdaptiveSpin spin;
  std::function<void()> task;
  std::unique_lock lock(state->mutex);
  while (true) {
    if (state->queue.empty() && !state->stopped) {
      ++state->spinning;
      lock.unlock();
      spin.until([&] { return state->waiting.load(std::memory_order_relaxed) != 0; });
      lock.lock();
      --state->spinning;
    }
    ++state->sleeping;
    state->work_arrived.wait(lock, [&] { return state->stopped || !state->queue.empty(); });
    --state->sleeping;
    if (state->queue.empty()) break;  // stopped, and nothing left to run
    state->take(task);
    provide(state);  // this one is busy now: somebody else for what waits behind its task
    lock.unlock();
    try {
      task();
    } catch (const std::exception& error) {
      // Tasks report their own failures; what still arrives here must not end the process.
      logWarning("a task of pool '" + state->name + "' threw: " + error.what());
    }
    task = nullptr;  // destroyed without the lock: it may own Python objects
    lock.lock();
    --state->running;
  }
  --state->workers;
}

void WorkerPool::watch(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  const auto crowded = [&] {
    return !state->queue.empty() && state->running == state->workers &&
           state->workers < state->limit;
  };
  while (true) {
    state->crowded.wait(lock, [&] { return state->stopped || crowded(); });
    if (state->stopped) return;
    const std::uint64_t begun = state->begun;
    state->crowded.wait_for(lock, kStuckAfter, [&] { return state->stopped; });
    if (!state->stopped && crowded() && state->begun == begun) {
      ++state->workers;
      start(state, &work, "");
    }
  }
}

void WorkerPool::provide(const std::shared_ptr<State>& state) {
  if (state->stopped || state->queue.size() <= state->spinning) return;  // one of those takes it
  if (state->sleeping != 0) {
    state->work_arrived.notify_one();
  } else if (state->workers < state->ready) {
    ++state->workers;
    start(state, &work, "");
  } else if (state->workers < state->limit) {
    if (!state->watched) start(state, &watch, "-w");
    state->watched = true;
    state->crowded.notify_one();
  }
}

bool WorkerPool::run(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  if (state_->stopped) return false;
  state_->queue.push_back(std::move(task));
  state_->waiting.store(state_->queue.size(), std::memory_order_relaxed);
  provide(state_);
  return true;
}

void WorkerPool::stop(std::chrono::milliseconds grace, Waiting waiting) {
  std::vector<std::thread> threads;
  std::deque<std::function<void()>> dropped;
  bool all_left = true;
  {
    std::unique_lock lock(state_->mutex);
    state_->stopped = true;
    if (waiting == Waiting::kDrop || state_->workers == 0) dropped.swap(state_->queue);
    threads.swap(state_->threads);
    state_->work_arrived.notify_all();
    state_->crowded.notify_all();
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
  return limit_ - state_->running;
}

}  // namespace weft::rpc
