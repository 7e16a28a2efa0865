// Weft's log lines for Python's logging (weft/_observe/logs.py): the threads that log put them into
// a queue, without the GIL, and one Python thread takes them out.
#include <pybind11/stl.h>
#include <unistd.h>

#include <atomic>
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
  // Keeps lines from now on. Never destroyed: threads may log while the process ends, and a forked
  // child makes one of its own, since it may have copied the mutex while a thread held it.
  static void open() {
    current() = new LogQueue();
    transport::setLogSink(&LogQueue::onLine);
  }

  // nullptr: this process has opened none.
  static LogQueue* get() {
    LogQueue* queue = current();
    return queue != nullptr && queue->process_ == getpid() ? queue : nullptr;
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

  static std::atomic<LogQueue*>& current() {
    static std::atomic<LogQueue*> queue{nullptr};
    return queue;
  }

  static void onLine(LogLevel level, const std::string& text) {
    LogQueue* queue = get();
    if (queue == nullptr) return transport::logToStandardError(level, text);
    const std::lock_guard lock(queue->mutex_);
    if (queue->lines_.size() >= kMost) {
      ++queue->dropped_;
      return;
    }
    queue->lines_.emplace_back(static_cast<int>(level), text);
    queue->came_.notify_one();
  }

  const pid_t process_ = getpid();  // that opened it
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Line> lines_;
  std::uint64_t dropped_ = 0;
  bool open_ = true;
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
  module.def("_open_log", &LogQueue::open, "Keeps lines for _take_log_lines().");
  module.def(
      "_take_log_lines",
      [] {
        LogQueue* queue = LogQueue::get();
        return queue != nullptr ? queue->take() : std::vector<Line>();
      },
      no_gil, "Waits for lines: (level, text); none once the log is closed.");
  module.def(
      "_close_log",
      [] {
        if (LogQueue* queue = LogQueue::get(); queue != nullptr) queue->close();
      },
      no_gil, "Later lines go to standard error.");
}

}  // namespace weft::rpc
