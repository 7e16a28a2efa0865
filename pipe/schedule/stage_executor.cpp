#include "pipe/schedule/stage_executor.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "pipe/schedule/execution.h"
#include "transport/base/spin.h"

namespace weft::pipe {

struct StageExecutor::State {
  struct Worker {
    std::condition_variable work_arrived;
    std::deque<std::shared_ptr<Execution>> queue;
    std::atomic<std::size_t> waiting{0};  // the queue's size, for the thread that spins
    std::thread thread;
  };
  State(std::size_t count, const ThreadHooks& the_hooks) : hooks(the_hooks), workers(count) {}

  const pid_t owner = getpid();
  const ThreadHooks hooks;
  std::mutex mutex;
  std::vector<Worker> workers;
  std::atomic<std::size_t> alive{0};
  bool stopped = false;
};

namespace {

// The executor whose thread this is, or that runs a job in line on it.
thread_local const StageExecutor* t_executor = nullptr;

// A forked child has none of its parent's threads, and the parent's locks may be held for ever:
// what the child finds is never touched or freed.
template <typename T>
void leak(std::shared_ptr<T> inherited) {
  new std::shared_ptr<T>(std::move(inherited));
}

}  // namespace

StageExecutor::StageExecutor(std::string name, std::size_t workers, ThreadHooks hooks)
    : name_(std::move(name)), workers_(workers), hooks_(std::move(hooks)) {}

StageExecutor::~StageExecutor() { stop(); }

std::size_t StageExecutor::threads() const {
  const std::lock_guard lock(state_mutex_);
  return state_ && state_->owner == getpid() ? state_->alive.load() : 0;
}

std::shared_ptr<StageExecutor::State> StageExecutor::state() {
  const std::lock_guard lock(state_mutex_);
  if (state_ && state_->owner != getpid()) leak(std::exchange(state_, nullptr));
  if (!state_) state_ = std::make_shared<State>(workers_, hooks_);
  return state_;
}

void StageExecutor::work(const std::shared_ptr<State>& state, std::size_t index) {
  if (state->hooks.started) state->hooks.started();
  State::Worker& worker = state->workers[index];
  transport::AdaptiveSpin spin;
  std::unique_lock lock(state->mutex);
  while (true) {
    if (worker.queue.empty() && !state->stopped) {
      lock.unlock();
      spin.until([&] { return worker.waiting.load(std::memory_order_relaxed) != 0; });
      lock.lock();
    }
    worker.work_arrived.wait(lock, [&] { return state->stopped || !worker.queue.empty(); });
    if (worker.queue.empty()) break;
    auto execution = std::move(worker.queue.front());
    worker.queue.pop_front();
    worker.waiting.store(worker.queue.size(), std::memory_order_relaxed);
    lock.unlock();
    execution->work(index, spin);
    execution = nullptr;
    lock.lock();
  }
  lock.unlock();
  if (state->hooks.ending) state->hooks.ending();
  --state->alive;
}

void StageExecutor::run(const Schedule& schedule, Job& job, Running running) {
  if (running == Running::kThreads && t_executor != this) return runOnThreads(schedule, job);
  struct Restore {
    const StageExecutor* value;
    ~Restore() { t_executor = value; }
  } const restore{std::exchange(t_executor, this)};
  for (TaskId task = 0; task < schedule.size(); ++task)
    job.run(task);
}

void StageExecutor::startThread(const std::shared_ptr<State>& state, std::size_t worker) {
  std::thread& thread = state->workers[worker].thread;
  thread = std::thread([this_executor = this, state, worker] {
    t_executor = this_executor;
    work(state, worker);
  });
  ++state->alive;  // under the mutex, which the thread takes before it ends
  pthread_setname_np(thread.native_handle(),
                     (name_ + std::to_string(worker)).substr(0, 15).c_str());
}

void StageExecutor::runOnThreads(const Schedule& schedule, Job& job) {
  std::vector<std::size_t> needed;
  for (std::size_t worker = 0; worker < workers_; ++worker) {
    if (!schedule.tasksOf(worker).empty()) needed.push_back(worker);
  }
  if (needed.empty()) return;
  const auto state = this->state();
  const auto execution = std::make_shared<Execution>(schedule, job, needed.size());
  {
    const std::lock_guard lock(state->mutex);
    // All threads before the first has the job: one that cannot be started fails the whole job.
    for (const std::size_t index : needed) {
      if (!state->workers[index].thread.joinable()) startThread(state, index);
    }
    for (const std::size_t index : needed) {
      State::Worker& worker = state->workers[index];
      worker.queue.push_back(execution);
      worker.waiting.store(worker.queue.size(), std::memory_order_relaxed);
      worker.work_arrived.notify_one();
    }
  }
  execution->wait(hooks_);
}

void StageExecutor::stop() {
  std::shared_ptr<State> state;
  {
    const std::lock_guard lock(state_mutex_);
    state.swap(state_);
  }
  if (!state) return;
  if (state->owner != getpid()) return leak(std::move(state));
  {
    const std::lock_guard lock(state->mutex);
    state->stopped = true;
    for (State::Worker& worker : state->workers)
      worker.work_arrived.notify_all();
  }
  const auto join = [&] {
    for (State::Worker& worker : state->workers) {
      if (!worker.thread.joinable()) continue;
      if (worker.thread.get_id() == std::this_thread::get_id()) {
        worker.thread.detach();
      } else {
        worker.thread.join();
      }
    }
  };
  if (hooks_.while_waiting) {
    hooks_.while_waiting(join);
  } else {
    join();
  }
}

}  // namespace weft::pipe
