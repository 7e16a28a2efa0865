// How long tasks take by themselves: what they do and what they wait for, but not the time that the
// rest of the machine had the cores.
//
// Whether threads pay must not depend on who else happens to compute while Weft finds out. The
// kernel counts, per thread, how long it could have run and did not (/proc/thread-self/schedstat,
// second figure); that is taken off the clock's time. It also counts how often a thread had to
// wait for something, the interpreter's lock for instance: being woken costs, and since that
// goes by before the thread has a core again, it is put back with a fixed price. Where the kernel
// does not count, a task's effort is its time by the clock.
#pragma once

#include <cstdint>
#include <vector>

#include "pipe/schedule/stage_executor.h"
#include "pipe/schedule/task_graph.h"

namespace weft::pipe {

// What handing a task to another thread costs: a futex wake, and a core that leaves its idle state.
inline constexpr double kHandOver = 15e-6;  // seconds

// A thread's time, read by itself.
struct ThreadTime {
  std::int64_t clock_ns = 0;
  std::int64_t denied_ns = 0;  // ready to run, and no core for it
  std::int64_t waits = 0;      // how often it waited for something
};

// Reads the calling thread's time; costs three system calls.
class ThreadStopwatch {
 public:
  ThreadStopwatch();
  ~ThreadStopwatch();
  ThreadStopwatch(const ThreadStopwatch&) = delete;
  ThreadStopwatch& operator=(const ThreadStopwatch&) = delete;

  // On the thread that made it.
  ThreadTime now() const;
  // False where the kernel does not count.
  bool counts() const { return file_ >= 0; }

 private:
  int file_;
};

// In seconds.
double effortBetween(const ThreadTime& begin, const ThreadTime& end);

// Another job, its tasks' efforts taken. Some microseconds per task: for a trial now and then.
class MeasuredJob final : public Job {
 public:
  MeasuredJob(Job& job, const TaskGraph& graph) : job_(job), efforts_(graph.size()) {}
  void run(TaskId task) override;
  void leaveOut(TaskId task) override { job_.leaveOut(task); }
  void worker(std::size_t worker, const std::function<void()>& share) override;
  // In seconds, per task. After the job.
  const std::vector<double>& efforts() const { return efforts_; }

 private:
  Job& job_;
  std::vector<double> efforts_;
};

// How long the tasks take one after the other.
double inLine(const std::vector<double>& efforts);
// How long they take with a thread and a core per worker, hand-overs included.
double onThreads(const TaskGraph& graph, const std::vector<double>& efforts);

}  // namespace weft::pipe
