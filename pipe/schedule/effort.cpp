#include "pipe/schedule/effort.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "pipe/schedule/timeline.h"

namespace weft::pipe {

namespace {

// "on-core waited slices", the first two in nanoseconds; the second, or 0.
std::int64_t secondFigure(int file) {
  std::array<char, 96> text{};
  const ssize_t size = file < 0 ? 0 : pread(file, text.data(), text.size(), 0);
  if (size <= 0) return 0;
  const char* const begin = text.data();
  const char* const end = begin + size;
  const char* const space = std::find(begin, end, ' ');
  std::int64_t value = 0;
  if (space != end) std::from_chars(space + 1, end, value);
  return value;
}

// Of the thread that works on a measured job; nullptr elsewhere.
thread_local const ThreadStopwatch* t_watch = nullptr;

struct Watched {
  Watched() : before(t_watch) { t_watch = &watch; }
  ~Watched() { t_watch = before; }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  const ThreadStopwatch watch;
  const ThreadStopwatch* before;
};

}  // namespace

ThreadStopwatch::ThreadStopwatch()
    : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
ThreadStopwatch::~ThreadStopwatch() {
  if (file_ >= 0) close(file_);
}

ThreadTime ThreadStopwatch::now() const {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  ThreadTime time;
  time.waits = usage.ru_nvcsw;
  time.denied_ns = secondFigure(file_);
  time.clock_ns = monotonicNanos();
  return time;
}

double effortBetween(const ThreadTime& begin, const ThreadTime& end) {
  const auto had = (end.clock_ns - begin.clock_ns) - (end.denied_ns - begin.denied_ns);
  const auto waits = static_cast<double>(end.waits - begin.waits);
  return static_cast<double>(std::max<std::int64_t>(had, 0)) * 1e-9 + waits * kHandOver;
}

void MeasuredJob::run(TaskId task) {
  const auto measure = [&] {
    const ThreadTime begin = t_watch->now();
    job_.run(task);
    efforts_[task] = effortBetween(begin, t_watch->now());
  };
  if (t_watch != nullptr) return measure();
  const Watched watched;  // in line there is no worker
  measure();
}

void MeasuredJob::worker(std::size_t worker, const std::function<void()>& share) {
  job_.worker(worker, [&] {
    const Watched watched;
    share();
  });
}

double inLine(const std::vector<double>& efforts) {
  return std::accumulate(efforts.begin(), efforts.end(), 0.0);
}

double onThreads(const TaskGraph& graph, const std::vector<double>& efforts) {
  std::vector<double> lane_free(graph.laneCount(), kHandOver);  // the threads are woken first
  std::vector<double> ready(graph.size(), 0);
  double end = 0;
  for (TaskId task = 0; task < graph.size(); ++task) {
    double& free = lane_free[graph.laneOf(task)];
    free = std::max(free, ready[task]) + efforts[task];
    for (const TaskId next : graph.next(task))
      ready[next] = std::max(ready[next], free + kHandOver);
    end = std::max(end, free);
  }
  return end + kHandOver;  // and then the caller
}

}  // namespace weft::pipe
