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

// One job on the threads. Shared: a lane may still be leaving it when the caller has gone.
struct Crew::Execution {
  Execution(const TaskGraph& the_graph, Job& the_job)
      : graph(the_graph), job(the_job), waits_for(the_graph.size()) {
    for (TaskId task = 0; task < graph.size(); ++task) {
      waits_for[task].store(graph.waitsFor(task), std::memory_order_relaxed);
    }
  }

  void runLane(std::size_t lane, transport::AdaptiveSpin& spin) {
    for (const TaskId task : graph.lane(lane)) {
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
    if (--lanes_left == 0) ended.notify_all();
  }

  void wait(const ThreadHooks& hooks) {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kInterruptEvery, [&] { return lanes_left == 0; })) {
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
  std::size_t lanes_left = 0;
  std::exception_ptr failure;
  bool broken_off = false;  // the caller's alone
};

struct Crew::State {
  struct Lane {
    std::condition_variable work_arrived;
    std::deque<std::shared_ptr<Execution>> queue;
    std::atomic<std::size_t> waiting{0};  // a hint for the thread that spins
    std::thread thread;
  };
  explicit State(std::size_t count) : lanes(count) {}

  const pid_t owner = getpid();
  ThreadHooks hooks;
  std::mutex mutex;
  std::vector<Lane> lanes;
  std::atomic<std::size_t> alive{0};
  bool stopped = false;
};

namespace {
thread_local const void* t_crew =
    nullptr;  // the crew whose thread, or whose caller inline, this is
}  // namespace

Crew::Crew(std::string name, std::size_t lanes, ThreadHooks hooks)
    : name_(std::move(name)), lanes_(lanes), hooks_(std::move(hooks)) {}

Crew::~Crew() { stop(); }

std::size_t Crew::threads() const {
  const std::lock_guard lock(state_mutex_);
  return state_ && state_->owner == getpid() ? state_->alive.load() : 0;
}

// The threads of a parent process are not here, and its locks may be held for ever: what a forked
// child finds is left alone, never freed.
std::shared_ptr<Crew::State> Crew::state() {
  const std::lock_guard lock(state_mutex_);
  if (state_ && state_->owner != getpid()) new std::shared_ptr<State>(std::move(state_));
  if (!state_) {
    state_ = std::make_shared<State>(lanes_);
    state_->hooks = hooks_;
  }
  return state_;
}

void Crew::work(const std::shared_ptr<State>& state, std::size_t index) {
  if (state->hooks.started) state->hooks.started();
  State::Lane& lane = state->lanes[index];
  transport::AdaptiveSpin spin;
  std::unique_lock lock(state->mutex);
  while (true) {
    if (lane.queue.empty() && !state->stopped) {
      lock.unlock();
      spin.until([&] { return lane.waiting.load(std::memory_order_relaxed) != 0; });
      lock.lock();
    }
    lane.work_arrived.wait(lock, [&] { return state->stopped || !lane.queue.empty(); });
    if (lane.queue.empty()) break;
    auto execution = std::move(lane.queue.front());
    lane.queue.pop_front();
    lane.waiting.store(lane.queue.size(), std::memory_order_relaxed);
    lock.unlock();
    execution->job.lane(index, [&] { execution->runLane(index, spin); });
    execution->leave();
    execution = nullptr;
    lock.lock();
  }
  lock.unlock();
  if (state->hooks.ending) state->hooks.ending();
  --state->alive;
}

void Crew::run(const TaskGraph& graph, Job& job, Running running) {
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
    for (std::size_t i = 0; i < lanes_; ++i) {
      if (!graph.lane(i).empty()) ++execution->lanes_left;
    }
    for (std::size_t i = 0; i < lanes_; ++i) {
      if (graph.lane(i).empty()) continue;
      State::Lane& lane = state->lanes[i];
      if (!lane.thread.joinable()) {
        ++state->alive;
        lane.thread = std::thread([this_crew = this, state, i] {
          t_crew = this_crew;
          work(state, i);
        });
        pthread_setname_np(lane.thread.native_handle(),
                           (name_ + std::to_string(i)).substr(0, 15).c_str());
      }
      lane.queue.push_back(execution);
      lane.waiting.store(lane.queue.size(), std::memory_order_relaxed);
      lane.work_arrived.notify_one();
    }
    if (execution->lanes_left == 0) return;
  }
  execution->wait(hooks_);
}

void Crew::stop() {
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
    for (State::Lane& lane : state->lanes)
      lane.work_arrived.notify_all();
  }
  const auto join = [&] {
    for (State::Lane& lane : state->lanes) {
      if (!lane.thread.joinable()) continue;
      if (lane.thread.get_id() == std::this_thread::get_id()) {
        lane.thread.detach();
      } else {
        lane.thread.join();
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
