// Runs the tasks of a schedule: on one thread per worker, or in line on the caller's thread.
//
// The first job that needs a thread starts it; it ends with the executor. Knows neither torch nor
// Python.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pipe/schedule/schedule.h"
#include "pipe/schedule/task_order.h"

namespace weft::pipe {

// What an executor runs. Lives until StageExecutor::run returns.
class Job {
 public:
  virtual ~Job() = default;
  // Runs one task, on its worker's thread. May throw. `order`: of the job's tasks; nullptr where
  // they run in line, one after the other.
  virtual void run(TaskId task, TaskOrder* order) = 0;
  // Calls `share`, a worker's share of the job, on its thread. `share` never throws.
  virtual void worker(std::size_t /*worker*/, const std::function<void()>& share) { share(); }
};

// What an embedding language does with the executor's threads. Empty functions are not called.
struct ThreadHooks {
  // In each thread, at its beginning and at its end.
  std::function<void()> started;
  std::function<void()> ending;
  // Calls its argument, which waits for threads: the place to release a global lock.
  std::function<void(const std::function<void()>&)> while_waiting;
  void await(const std::function<void()>& wait) const {
    while_waiting ? while_waiting(wait) : wait();
  }
};

enum class Running : unsigned char { kThreads, kInline };

class StageExecutor {
 public:
  StageExecutor(std::string name, std::size_t workers, ThreadHooks hooks);
  // Waits for the threads, except for the calling one if it is the executor's own.
  ~StageExecutor();
  StageExecutor(const StageExecutor&) = delete;
  StageExecutor& operator=(const StageExecutor&) = delete;

  // Returns when no task of the job runs any more. When tasks throw, those after the failed one in
  // the schedule's order are skipped, those before it run on, and the earliest exception is
  // thrown. So is what Ctrl-C raised, which skips all that have not begun. Several threads may call
  // this at once: jobs run in one order in all workers. From inside a task of the same executor the
  // job runs in line, and where a thread cannot be started. A forked child starts new threads.
  void run(const Schedule& schedule, Job& job, Running running);

  // Ends the threads, as the destructor does; the next run() starts others. Not while one runs.
  void stop();

  // Threads alive now.
  std::size_t threads() const;
  const ThreadHooks& hooks() const { return hooks_; }

 private:
  struct State;

  std::shared_ptr<State> state();
  void runInline(const Schedule& schedule, Job& job);
  void runOnThreads(const Schedule& schedule, Job& job);
  void startThread(const std::shared_ptr<State>& state, std::size_t worker);
  static void work(const std::shared_ptr<State>& state, std::size_t worker);

  const std::string name_;
  const std::size_t workers_;
  const ThreadHooks hooks_;
  mutable std::mutex state_mutex_;  // held for an assignment only
  std::shared_ptr<State> state_;
};

}  // namespace weft::pipe
