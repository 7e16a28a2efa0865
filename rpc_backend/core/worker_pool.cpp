#include "rpc_backend/core/worker_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "rpc_backend/core/log.h"
#include "transport/base/spin.h"

namespace weft::rpc {

namespace {
// How long tasks may wait while none begins before another thread is started.
constexpr std::chrono::milliseconds kStuckAfter{1};
}  // namespace

// A thread's bed: each sleeps in its own, so that it can be chosen who is woken.
struct WorkerPool::Sleeper {
  std::condition_variable woken;
};

struct WorkerPool::State {
  std::string name;
  std::size_t ready = 1;
  std::size_t limit = 1;
  ThreadHooks hooks;
  mutable std::mutex mutex;
  std::condition_variable backlogged;  // wakes the watcher
  std::condition_variable thread_left;
  std::deque<std::function<void()>> queue;
  // Read without the lock by threads that spin: only a hint that looking is worth while.
  std::atomic<std::size_t> waiting{0};
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<Sleeper>> sleeping;  // the last to lie down is the first to be woken
  bool searching = false;                          // a worker looks for work
  std::size_t called = 0;                          // workers woken that have not got up yet
  std::size_t running = 0;                         // workers inside a task
  std::size_t workers = 0;
  std::size_t alive = 0;    // workers and the watcher
  std::uint64_t begun = 0;  // tasks, ever
  bool watched = false;     // there is a watcher
  bool watching = false;    // it looks already, at most once in a millisecond
  bool stopped = false;

  void take(std::function<void()>& task) {
    task = std::move(queue.front());
    queue.pop_front();
    waiting.store(queue.size(), std::memory_order_relaxed);
    ++begun;
    ++running;
  }

  void sleep(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Sleeper>& bed) {
    sleeping.push_back(bed);
    const auto still = [&] { return std::find(sleeping.begin(), sleeping.end(), bed); };
    bed->woken.wait(lock, [&] { return stopped || still() == sleeping.end(); });
    if (const auto own = still(); own != sleeping.end()) {
      sleeping.erase(own);
    } else {
      --called;
    }
  }
};

WorkerPool::WorkerPool(std::string name, std::size_t ready, std::size_t limit, ThreadHooks hooks)
    : limit_(limit), state_(std::make_shared<State>()) {
  state_->name = std::move(name);
  state_->hooks = std::move(hooks);
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
  if (state->hooks.begin) state->hooks.begin();
  runTasks(state);
  if (state->hooks.end) state->hooks.end();
}

void WorkerPool::runTasks(const std::shared_ptr<State>& state) {
  transport::AdaptiveSpin spin;
  const auto bed = std::make_shared<Sleeper>();
  std::function<void()> task;
  std::unique_lock lock(state->mutex);
  while (true) {
    if (state->queue.empty() && !state->stopped && !state->searching) {
      state->searching = true;
      lock.unlock();
      spin.until([&] { return state->waiting.load(std::memory_order_relaxed) != 0; });
      lock.lock();
      state->searching = false;
    }
    while (state->queue.empty() && !state->stopped)
      state->sleep(lock, bed);
    if (state->queue.empty()) break;  // stopped, and nothing left to run
    state->take(task);
    // This one is busy now: somebody else for what waits behind its task.
    const std::shared_ptr<Sleeper> next = provide(state);
    lock.unlock();
    if (next) next->woken.notify_one();
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
  const auto backlogged = [&] {
    return !state->queue.empty() && state->running == state->workers &&
           state->workers < state->limit;
  };
  while (true) {
    state->backlogged.wait(lock, [&] { return state->stopped || state->watching || backlogged(); });
    if (state->stopped) return;
    state->watching = true;
    const std::uint64_t begun = state->begun;
    state->backlogged.wait_for(lock, kStuckAfter, [&] { return state->stopped; });
    if (!state->stopped && backlogged() && state->begun == begun) {
      ++state->workers;
      start(state, &work, "");
    }
    state->watching = false;
  }
}

std::shared_ptr<WorkerPool::Sleeper> WorkerPool::provide(const std::shared_ptr<State>& state) {
  const std::size_t coming = state->called + (state->searching ? 1 : 0);
  if (state->stopped || state->queue.size() <= coming) return nullptr;  // one of those takes it
  if (!state->sleeping.empty()) {
    std::shared_ptr<Sleeper> last = std::move(state->sleeping.back());
    state->sleeping.pop_back();
    ++state->called;
    return last;
  }
  if (state->workers < state->ready) {
    ++state->workers;
    start(state, &work, "");
  } else if (state->workers < state->limit) {
    if (!state->watched) start(state, &watch, "-w");
    state->watched = true;
    if (!std::exchange(state->watching, true)) state->backlogged.notify_one();
  }
  return nullptr;
}

bool WorkerPool::run(std::function<void()> task) {
  std::shared_ptr<Sleeper> next;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopped) return false;
    state_->queue.push_back(std::move(task));
    state_->waiting.store(state_->queue.size(), std::memory_order_relaxed);
    next = provide(state_);
  }
  if (next) next->woken.notify_one();
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
    for (const std::shared_ptr<Sleeper>& sleeper : state_->sleeping)
      sleeper->woken.notify_one();
    state_->backlogged.notify_all();
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
