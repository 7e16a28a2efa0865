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
#include <vector>

#include "transport/base/spin.h"

namespace weft::pipe {

namespace {
constexpr std::chrono::milliseconds kInterruptEvery{50};
constexpr TaskId kNone = std::numeric_limits<TaskId>::max();
}  // namespace

// One job on the threads. Shared: a worker may still be leaving it when the caller has gone.
struct StageExecutor::Execution {
  Execution(const TaskGraph& the_graph, Job& the_job)
      : graph(the_graph), job(the_job), waits_for(the_graph.size()) {
    for (TaskId task = 0; task < graph.size(); ++task) {
      waits_for[task].store(graph.waitsFor(task), std::memory_order_relaxed);
    }
  }

  void runWorker(std::size_t worker, transport::AdaptiveSpin& spin) {
    for (const TaskId task : graph.worker(worker)) {
      await(task, spin);
      if (task < first_failed.load(std::memory_order_acquire)) {
        try {
          job.run(task);
        } catch (...) {
          fail(task, std::current_exception());
        }
      } else {
        job.leaveOut(task);
      }
      for (const TaskId next : graph.next(task)) {
        if (waits_for[next].fetch_sub(1, std::memory_order_acq_rel) == 1) {
          waits_for[next].notify_one();
        }
      }
    }
  }

  void await(TaskId task, transport::AdaptiveSpin& spin) {
    auto& left = waits_for[task];
    const auto ready = [&] { return left.load(std::memory_order_acquire) == 0; };
    if (ready() || spin.until(ready)) return;
    for (auto seen = left.load(std::memory_order_acquire); seen != 0;
         seen = left.load(std::memory_order_acquire)) {
      left.wait(seen, std::memory_order_acquire);
    }
  }

  void fail(TaskId task, std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (task < first_failed.load(std::memory_order_relaxed)) {
      first_failed.store(task, std::memory_order_release);
      failure.swap(error);
    }
  }

  void leave() {
    const std::lock_guard lock(mutex);
    if (--workers_left == 0) ended.notify_all();
  }

  void wait(const ThreadHooks& hooks) {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kInterruptEvery, [&] { return workers_left == 0; })) {
      if (!hooks.interrupted || broken_off) continue;
      lock.unlock();
      try {
        hooks.interrupted();
      } catch (...) {
        broken_off = true;
        fail(0, std::current_exception());
      }
      lock.lock();
    }
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  const TaskGraph& graph;
  Job& job;
  std::vector<std::atomic<std::uint32_t>> waits_for;
  std::atomic<TaskId> first_failed{kNone};  // tasks from here on are left out
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t workers_left = 0;
  std::exception_ptr failure;
  bool broken_off = false;  // the caller's alone
};

struct StageExecutor::State {
  struct Worker {
    std::condition_variable work_arrived;
    std::deque<std::shared_ptr<Execution>> queue;
    std::atomic<std::size_t> waiting{0};  // a hint for the thread that spins
    std::thread thread;
  };
  explicit State(std::size_t count) : workers(count) {}

  const pid_t owner = getpid();
  ThreadHooks hooks;
  std::mutex mutex;
  std::vector<Worker> workers;
  std::atomic<std::size_t> alive{0};
  bool stopped = false;
};

namespace {
thread_local const void* t_crew =
    nullptr;  // the executor whose thread, or whose caller inline, this is
}  // namespace

StageExecutor::StageExecutor(std::string name, std::size_t workers, ThreadHooks hooks)
    : name_(std::move(name)), workers_(workers), hooks_(std::move(hooks)) {}

StageExecutor::~StageExecutor() { stop(); }

std::size_t StageExecutor::threads() const {
  const std::lock_guard lock(state_mutex_);
  return state_ && state_->owner == getpid() ? state_->alive.load() : 0;
}

// The threads of a parent process are not here, and its locks may be held for ever: what a forked
// child finds is left alone, never freed.
std::shared_ptr<StageExecutor::State> StageExecutor::state() {
  const std::lock_guard lock(state_mutex_);
  if (state_ && state_->owner != getpid()) new std::shared_ptr<State>(std::move(state_));
  if (!state_) {
    state_ = std::make_shared<State>(workers_);
    state_->hooks = hooks_;
  }
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
    execution->job.worker(index, [&] { execution->runWorker(index, spin); });
    execution->leave();
    execution = nullptr;
    lock.lock();
  }
  lock.unlock();
  if (state->hooks.ending) state->hooks.ending();
  --state->alive;
}

void StageExecutor::run(const TaskGraph& graph, Job& job, Running running) {
  const void* const before = t_crew;
  if (running == Running::kInline || t_crew == this) {
    t_crew = this;
    struct Restore {
      const void* value;
      ~Restore() { t_crew = value; }
    } const restore{before};
    for (TaskId task = 0; task < graph.size(); ++task)
      job.run(task);
    return;
  }
  const auto state = this->state();
  const auto execution = std::make_shared<Execution>(graph, job);
  {
    const std::lock_guard lock(state->mutex);
    for (std::size_t i = 0; i < workers_; ++i) {
      if (!graph.worker(i).empty()) ++execution->workers_left;
    }
    for (std::size_t i = 0; i < workers_; ++i) {
      if (graph.worker(i).empty()) continue;
      State::Worker& worker = state->workers[i];
      if (!worker.thread.joinable()) {
        ++state->alive;
        worker.thread = std::thread([this_executor = this, state, i] {
          t_crew = this_executor;
          work(state, i);
        });
        pthread_setname_np(worker.thread.native_handle(),
                           (name_ + std::to_string(i)).substr(0, 15).c_str());
      }
      worker.queue.push_back(execution);
      worker.waiting.store(worker.queue.size(), std::memory_order_relaxed);
      worker.work_arrived.notify_one();
    }
    if (execution->workers_left == 0) return;
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
  if (state->owner != getpid()) {
    new std::shared_ptr<State>(std::move(state));  // see state()
    return;
  }
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
