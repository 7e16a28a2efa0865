#include "rpc_backend/threads/worker_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "rpc_backend/core/log.h"
#include "rpc_backend/threads/pool_threads.h"
#include "transport/base/fork_guard.h"

namespace weft::rpc {

namespace {
// How long tasks may wait while none begins before another thread is started.
constexpr std::chrono::milliseconds kStuckAfter{1};
// The same after one could not be started.
constexpr std::chrono::milliseconds kRetryAfter{100};
// How long a thread beyond the ready ones stays without work.
constexpr std::chrono::milliseconds kLeaveAfter{2000};
}  // namespace

struct WorkerPool::State : std::enable_shared_from_this<State> {
  // Each thread sleeps on a condition variable of its own, so that the pool chooses whom to wake.
  using Sleeper = std::shared_ptr<std::condition_variable>;
  // Which thread to wake once the lock is free.
  struct Wake {
    Sleeper sleeper;
    IdleSearches::Place* search = nullptr;
  };

  explicit State(std::string name) : threads(std::move(name)) {}

  const transport::ForkGuard process;
  std::size_t ready = 1;
  std::size_t limit = 1;
  ThreadHooks hooks;
  mutable std::mutex mutex;
  std::condition_variable backlogged;  // wakes the watcher
  std::deque<std::function<void()>> queue;
  // Read without the lock by threads that look for work.
  std::atomic<std::size_t> waiting{0};
  PoolThreads threads;
  std::vector<Sleeper> sleeping;  // a stack: the most recently idle first
  IdleSearches searches;
  std::size_t called = 0;   // workers woken that do not run yet
  std::size_t running = 0;  // workers inside a task
  std::size_t workers = 0;
  std::uint64_t begun = 0;  // tasks so far
  bool watched = false;     // there is a watcher
  bool watching = false;    // the watcher looks, or was asked to; once a millisecond
  bool held = false;
  std::atomic<bool> stopped{false};  // written with the lock

  // Whether no task may begin.
  bool nothingToDo() const { return queue.empty() || (held && !stopped); }

  void takeNext(std::function<void()>& task) {
    task = std::move(queue.front());
    queue.pop_front();
    waiting = queue.size();
  }

  // Sleeps until it is woken. False: nothing has come for kLeaveAfter, and this thread, which is
  // one more than the ready ones, should leave.
  bool sleep(std::unique_lock<std::mutex>& lock, const Sleeper& sleeper) {
    sleeping.push_back(sleeper);
    const auto still = [&] { return std::find(sleeping.begin(), sleeping.end(), sleeper); };
    const auto woken = [&] { return stopped || still() == sleeping.end(); };
    const bool stays =
        workers <= ready || sleeper->wait_for(lock, kLeaveAfter, woken) || workers <= ready;
    if (stays) sleeper->wait(lock, woken);
    if (const auto own = still(); own != sleeping.end()) {
      sleeping.erase(own);
    } else {
      --called;
    }
    return stays;
  }

  // With the lock. False: none can be started now, and threads.warn() should follow without it.
  bool startWorker() {
    const auto body = [self = shared_from_this()] { self->work(); };
    if (!threads.start(mutex, body, "")) return false;
    ++workers;
    return true;
  }

  // work() and watch() run as threads.
  void work() {
    if (hooks.begin) hooks.begin();
    runTasks();
    if (hooks.end) hooks.end();
  }

  void runTasks() {
    transport::AdaptiveSpin spin;
    const auto sleeper = std::make_shared<std::condition_variable>();
    std::function<void()> task;
    const auto came = [this] { return waiting != 0 || stopped; };
    std::unique_lock lock(mutex);
    while (true) {
      auto* const search = queue.empty() && !stopped ? searches.free() : nullptr;
      if (search != nullptr && searches.look(lock, *search, !held, came, task, spin) && !task)
        continue;
      while (!task && nothingToDo() && !stopped) {
        if (sleep(lock, sleeper)) continue;
        --workers;
        threads.leave(lock);
        return;
      }
      if (!task) {
        if (queue.empty()) break;  // stopped, and nothing left to run
        takeNext(task);
      }
      ++begun;
      ++running;
      // This thread is busy now: another one takes what waits behind its task.
      const Wake next = provide();
      lock.unlock();
      wake(next);
      threads.warn();
      try {
        task();
      } catch (const std::exception& error) {
        // Tasks report their own failures; what still arrives here must not end the process.
        logWarning("a task of pool '" + threads.name() + "' threw: " + error.what());
      }
      // A task forked, and its child returned here: nothing is left for it to do, nor to end it.
      if (!process.inOwnProcess()) ::_exit(EXIT_FAILURE);
      task = nullptr;  // destroyed without the lock: it may own Python objects
      if (hooks.after_task) hooks.after_task();
      lock.lock();
      --running;
    }
    --workers;
  }

  void watch() {
    std::unique_lock lock(mutex);
    const auto stuck = [&] { return !queue.empty() && running == workers && workers < limit; };
    while (true) {
      backlogged.wait(lock, [&] { return stopped || watching || stuck(); });
      if (stopped) return;
      watching = true;
      const std::uint64_t before = begun;
      backlogged.wait_for(lock, threads.lastStartFailed() ? kRetryAfter : kStuckAfter,
                          [&] { return stopped.load(); });
      const bool failed = !stopped && stuck() && begun == before && !startWorker();
      watching = false;
      if (!failed) continue;
      lock.unlock();
      threads.warn();
      lock.lock();
    }
  }

  // Finds a thread for the tasks that wait. With the lock held. After it releases the lock, which
  // a sleeper takes first, the caller wakes who is returned, and warns.
  [[nodiscard]] Wake provide() {
    Wake next;
    if (stopped || held || queue.empty()) return next;
    if (queue.size() <= called + searches.awake()) return next;  // one of those takes it
    next.search = searches.callSleeping();
    if (next.search != nullptr) return next;
    if (!sleeping.empty()) {
      next.sleeper = std::move(sleeping.back());
      sleeping.pop_back();
      ++called;
      return next;
    }
    // Where a thread cannot be started the watcher goes on trying.
    if (workers < ready && startWorker()) return next;
    if (workers < limit) {
      if (!watched)
        watched = threads.start(
            mutex, [self = shared_from_this()] { self->watch(); }, "-w");
      if (watched && !std::exchange(watching, true)) backlogged.notify_one();
    }
    return next;
  }

  // Without the lock.
  void wake(const Wake& next) const {
    if (next.sleeper) next.sleeper->notify_one();
    if (next.search != nullptr) next.search->work.wake();
  }
};

WorkerPool::WorkerPool(std::string name, std::size_t ready, std::size_t limit, ThreadHooks hooks,
                       bool held)
    : limit_(limit), state_(std::make_shared<State>(std::move(name))) {
  state_->hooks = std::move(hooks);
  state_->ready = std::min(ready, limit);
  state_->limit = limit;
  state_->held = held;
}

WorkerPool::~WorkerPool() { stop(std::chrono::milliseconds(0)); }

void WorkerPool::addIdleWork(IdleWork work) {
  const std::lock_guard lock(state_->mutex);
  state_->searches.add(std::move(work));
}

void WorkerPool::release() {
  State::Wake first;
  {
    const std::lock_guard lock(state_->mutex);
    state_->held = false;
    first = state_->provide();  // the first thread at most, which finds the next
  }
  state_->wake(first);
  state_->threads.warn();
}

transport::Error WorkerPool::prepare() {
  const std::lock_guard lock(state_->mutex);
  if (state_->stopped || state_->workers > 0 || state_->startWorker()) return {};
  return state_->threads.takeStartFailure();  // the error says it
}

bool WorkerPool::run(std::function<void()>&& task) {
  State::Wake next;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopped) return false;
    state_->queue.push_back(std::move(task));
    state_->waiting = state_->queue.size();
    next = state_->provide();
  }
  state_->wake(next);
  state_->threads.warn();
  return true;
}

bool WorkerPool::runNext(std::function<void()>&& task) {
  const std::lock_guard lock(state_->mutex);
  if (state_->stopped || state_->running + 2 > state_->limit) return false;
  auto* const search = state_->searches.ofThisThread();
  if (search == nullptr) return false;
  search->task = std::move(task);
  return true;
}

void WorkerPool::stop(std::chrono::milliseconds grace, Waiting waiting) {
  std::deque<std::function<void()>> dropped;  // destroyed without the lock
  std::unique_lock lock(state_->mutex);
  state_->stopped = true;
  if (waiting == Waiting::kDrop || state_->workers == 0) dropped.swap(state_->queue);
  for (const auto& sleeper : state_->sleeping)
    sleeper->notify_one();
  state_->backlogged.notify_all();
  state_->searches.wakeSleeping();
  state_->threads.join(lock, grace);
}

std::size_t WorkerPool::threads() const {
  const std::lock_guard lock(state_->mutex);
  return state_->threads.alive();
}

std::size_t WorkerPool::idleThreads() const {
  const std::lock_guard lock(state_->mutex);
  return limit_ - state_->running;
}

}  // namespace weft::rpc
