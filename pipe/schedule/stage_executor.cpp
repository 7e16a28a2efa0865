#include "pipe/schedule/stage_executor.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "transport/base/interruption.h"
#include "transport/base/log.h"
#include "transport/base/spin.h"
#include "transport/base/thrown.h"

namespace weft::pipe {

namespace {

// One job on the workers' threads: its progress, the first failure, and its end. Shared by the
// caller and the workers: one of these may still be leaving when the caller has gone.
class Execution {
 public:
  Execution(const Schedule& schedule, Job& job, std::size_t workers)
      : schedule_(schedule), job_(job), order_(schedule.size()), workers_left_(workers) {}

  // A worker's share of the job, on its thread.
  void work(std::size_t worker, transport::AdaptiveSpin& spin) {
    job_.worker(worker, [&] {
      for (const TaskId task : schedule_.tasksOf(worker)) {
        for (const TaskId earlier : schedule_.task(task).needs)
          order_.awaitEndOf(earlier, spin);
        run(task);
        order_.end(task);
      }
    });
    const std::lock_guard lock(mutex_);
    if (--workers_left_ == 0) ended_.notify_all();
  }

  // Waits for all workers; throws the earliest task's exception, or what Ctrl-C raised.
  void wait() {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return workers_left_ == 0; };
    if (!transport::waitInterruptibly(ended_, lock, over)) {
      lock.unlock();
      try {
        transport::raiseInterrupt();
      } catch (...) {
        fail(0, std::current_exception());
      }
      lock.lock();
      ended_.wait(lock, over);
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  static constexpr TaskId kNone = std::numeric_limits<TaskId>::max();

  void run(TaskId task) {
    if (task >= first_failed_.load(std::memory_order_acquire)) return;
    try {
      job_.run(task, &order_);
    } catch (...) {
      fail(task, std::current_exception());
    }
  }

  void fail(TaskId task, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (task >= first_failed_.load(std::memory_order_relaxed)) return;
    first_failed_.store(task, std::memory_order_release);
    failure_.swap(error);
  }

  const Schedule& schedule_;
  Job& job_;
  TaskOrder order_;
  std::atomic<TaskId> first_failed_{kNone};  // tasks from here on are skipped
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t workers_left_;
  std::exception_ptr failure_;
};

}  // namespace

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
  std::atomic<bool> warned{false};  // that a thread could not be started
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
  runInline(schedule, job);
}

void StageExecutor::runInline(const Schedule& schedule, Job& job) {
  struct Restore {
    const StageExecutor* value;
    ~Restore() { t_executor = value; }
  } const restore{std::exchange(t_executor, this)};
  for (TaskId task = 0; task < schedule.size(); ++task)
    job.run(task, nullptr);
}

// Under the mutex.
void StageExecutor::startThread(const std::shared_ptr<State>& state, std::size_t worker) {
  std::thread& thread = state->workers[worker].thread;
  if (thread.joinable()) return;
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
    std::unique_lock lock(state->mutex);
    // All threads before the first has the job: it is not shared without one of them. Those that
    // could be started are there for the next job.
    const auto thrown = transport::thrownBy([&] {
      for (const std::size_t index : needed)
        startThread(state, index);
    });
    if (thrown) {
      lock.unlock();
      if (!state->warned.exchange(true)) {
        transport::log(transport::LogLevel::kWarning,
                       "a pipeline cannot start its threads (" + *thrown +
                           ") and runs its stages one after another");
      }
      return runInline(schedule, job);
    }
    for (const std::size_t index : needed) {
      State::Worker& worker = state->workers[index];
      worker.queue.push_back(execution);
      worker.waiting.store(worker.queue.size(), std::memory_order_relaxed);
      worker.work_arrived.notify_one();
    }
  }
  execution->wait();
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
  hooks_.await([&] {
    for (State::Worker& worker : state->workers) {
      if (!worker.thread.joinable()) continue;
      if (worker.thread.get_id() == std::this_thread::get_id()) {
        worker.thread.detach();
      } else {
        worker.thread.join();
      }
    }
  });
}

}  // namespace weft::pipe
