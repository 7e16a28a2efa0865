// The threads of a pipeline: one per worker, started by the first job that needs them, ended with
// the executor. Knows neither torch nor Python.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "pipe/schedule/task_graph.h"

namespace weft::pipe {

// What a executor runs. Lives until StageExecutor::run returns.
class Job {
 public:
  virtual ~Job() = default;
  // Does one task, on its worker's thread. May throw.
  virtual void run(TaskId task) = 0;
  // Instead of run(), on its worker's thread, for a task that comes after one that failed.
  virtual void leaveOut(TaskId /*task*/) {}
  // What a worker's thread does around its share of the job: `share` never throws. On that thread.
  virtual void worker(std::size_t /*worker*/, const std::function<void()>& share) { share(); }
};

// What an embedding language does with the executor's threads. Empty functions are not called.
struct ThreadHooks {
  // In each thread, at its beginning and at its end.
  std::function<void()> started;
  std::function<void()> ending;
  // Calls its argument, which waits for threads: a place to let go of a global lock.
  std::function<void(const std::function<void()>&)> while_waiting;
  // Called now and then by a thread that waits in StageExecutor::run. If it throws, the job is
  // broken off and run() throws that.
  std::function<void()> interrupted;
};

// How StageExecutor::run works: on the workers' threads, or task after task on the caller's.
enum class Running : unsigned char { kThreads, kInline };

class StageExecutor {
 public:
  StageExecutor(std::string name, std::size_t workers, ThreadHooks hooks);
  // Waits for the threads. A thread of the executor itself may drop it: that one is left to end
  // alone.
  ~StageExecutor();
  StageExecutor(const StageExecutor&) = delete;
  StageExecutor& operator=(const StageExecutor&) = delete;

  // Returns when no task of the job runs any more. When tasks throw, those after the failed one in
  // the schedule's order are left out, those before it run on, and the earliest exception is
  // thrown. Several threads may call this at once: jobs run in one order in all workers. From
  // inside a task of the same executor the job runs inline. In a forked child new threads are
  // started.
  void run(const TaskGraph& graph, Job& job, Running running);

  // Ends the threads, as the destructor does; the next run() starts others. Not while one runs.
  void stop();

  // Threads alive now.
  std::size_t threads() const;
  const ThreadHooks& hooks() const { return hooks_; }

 private:
  struct State;
  struct Execution;

  std::shared_ptr<State> state();
  static void work(const std::shared_ptr<State>& state, std::size_t worker);

  const std::string name_;
  const std::size_t workers_;
  const ThreadHooks hooks_;
  mutable std::mutex state_mutex_;  // held for an assignment
  std::shared_ptr<State> state_;
};

}  // namespace weft::pipe
