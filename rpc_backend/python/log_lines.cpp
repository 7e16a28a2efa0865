// Weft's log lines for Python's logging (weft/logs.py): the threads that log put them into a queue,
// without the GIL, and one Python thread takes them out.
#include <pybind11/stl.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rpc_backend/python/bindings.h"
#include "transport/base/log.h"

namespace py = pybind11;

namespace weft::rpc {

using transport::LogLevel;

namespace {

using Line = std::pair<int, std::string>;  // the level, as a number of LogLevel

class LogQueue {
 public:
  // Never destroyed: threads may log while the process ends.
  static LogQueue& get() {
    static auto* const queue = new LogQueue();
    return *queue;
  }

  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    process_ = getpid();
    transport::setLogSink(&LogQueue::onLine);
  }

  // Waits for lines; none: the queue is closed. Without the GIL.
  std::vector<Line> take() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return !lines_.empty() || !open_; });
    if (const std::uint64_t dropped = std::exchange(dropped_, 0); dropped > 0) {
      lines_.emplace_back(
          static_cast<int>(LogLevel::kWarning),
          "log lines came too fast, and " + std::to_string(dropped) + " were dropped");
    }
    return std::exchange(lines_, {});
  }

  // Later lines go to standard error.
  void close() {
    transport::setLogSink(nullptr);
    const std::lock_guard lock(mutex_);
    open_ = false;
    came_.notify_all();
  }

 private:
  static constexpr std::size_t kMost = 10'000;

  static void onLine(LogLevel level, const std::string& text) {
    LogQueue& queue = get();
    // A forked child has no thread that reads, and perhaps a lock that nobody lets go of.
    if (queue.process_ != getpid()) return transport::logToStandardError(level, text);
    const std::lock_guard lock(queue.mutex_);
    if (queue.lines_.size() >= kMost) {
      ++queue.dropped_;
      return;
    }
    queue.lines_.emplace_back(static_cast<int>(level), text);
    queue.came_.notify_one();
  }

  pid_t process_ = 0;  // that opened it
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Line> lines_;
  std::uint64_t dropped_ = 0;
  bool open_ = false;
};

}  // namespace

void bindLog(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  // The levels are 0 (debug) to 3 (error).
  module.def(
      "_set_log_level", [](int level) { transport::setLogLevel(static_cast<LogLevel>(level)); },
      py::arg("level"), "Which lines are shown, instead of WEFT_LOG_LEVEL.");
  module.def(
      "_log",
      [](int level, const std::string& text) {
        transport::log(static_cast<LogLevel>(level), text);
      },
      py::arg("level"), py::arg("text"), no_gil, "A line of Weft's log.");
  module.def(
      "_open_log", [] { LogQueue::get().open(); }, "Keeps lines for _take_log_lines().");
  module.def(
      "_take_log_lines", [] { return LogQueue::get().take(); }, no_gil,
      "Waits for lines: (level, text); none once the log is closed.");
  module.def(
      "_close_log", [] { LogQueue::get().close(); }, no_gil, "Later lines go to standard error.");
}

}  // namespace weft::rpc
