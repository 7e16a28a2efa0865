// The stacks of Python's threads while one of them holds the GIL for long, as native code may.
//
// No Python runs then. Python's faulthandler has a signal handler that writes all stacks into a
// file without the GIL; weft/_observe/held_gil.py registers it beforehand. It is called here as a
// function: no signal is sent, so none interrupts a thread, and none ends a process whose program
// has taken the signal for itself.
//
// The handler reads frames that running threads change, so it is called only where no thread could
// take the GIL for a while: then nobody runs. Peers ask by a scripted call, which needs no GIL.
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <signal.h>
#include <sys/stat.h>
#include <torch/csrc/distributed/rpc/torchscript_functions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rpc_backend/core/log.h"
#include "rpc_backend/python/bindings.h"
#include "rpc_backend/serve/script_service.h"
#include "third_party/torch/interpreter.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

constexpr const char* kName = "__weft__.stacks";
constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr int kPatience = 18;  // slices that a peer's question waits for the GIL

// What faulthandler wrote, the oldest thread first, without those that are not in Python.
std::string readable(const std::string& dump) {
  std::string text;
  for (std::size_t from = 0; from < dump.size();) {
    const std::size_t end = std::min(dump.find("\n\n", from), dump.size());
    std::string thread = dump.substr(from, end - from);
    from = end + 2;
    if (thread.find("<no Python frame>") != std::string::npos) continue;
    if (thread.ends_with('\n')) thread.pop_back();
    text.insert(0, thread + (text.empty() ? "\n" : "\n\n"));
  }
  return text;
}

// Asks a thread of its own to take the GIL and to let go of it. Any thread, without the GIL.
class GilProbe {
 public:
  // Whether the GIL could be had within so many slices. In slices, because a process that was
  // stopped for long has had no chance: it counts as one. Throws std::system_error where no thread
  // can be started.
  bool succeeds(int slices) {
    const std::shared_ptr<Attempt> attempt = begun();
    std::unique_lock lock(attempt->mutex);
    while (!attempt->done && slices-- > 0)
      attempt->ended.wait_for(lock, kSlice);
    return attempt->done;
  }

  // Waits for the attempt under way.
  void finish() {
    const std::lock_guard lock(mutex_);
    if (attempt_ == nullptr) return;
    std::unique_lock waiting(attempt_->mutex);
    attempt_->ended.wait(waiting, [&] { return attempt_->done; });
  }

 private:
  struct Attempt {
    std::mutex mutex;
    std::condition_variable ended;
    bool done = false;

    bool isDone() {
      const std::lock_guard lock(mutex);
      return done;
    }
  };

  static void make(const std::shared_ptr<Attempt>& attempt) {
    pthread_setname_np(pthread_self(), "weft-gil-probe");
    if (!interpreterEnds()) const py::gil_scoped_acquire gil;
    const std::lock_guard lock(attempt->mutex);
    attempt->done = true;
    attempt->ended.notify_all();
  }

  // One at a time: while the GIL is held they would only pile up.
  std::shared_ptr<Attempt> begun() {
    const std::lock_guard lock(mutex_);
    if (attempt_ == nullptr || attempt_->isDone()) {
      auto next = std::make_shared<Attempt>();
      std::thread([next] { make(next); }).detach();
      attempt_ = std::move(next);
    }
    return attempt_;
  }

  std::mutex mutex_;
  std::shared_ptr<Attempt> attempt_;
};

// What one process has armed. Any thread, without the GIL. A forked child has no part in its
// parent's, whose threads it lacks; it arms its own.
class Armed {
 public:
  // `file` is what the signal's handler, faulthandler's, writes to.
  Armed(int signal, int file) : signal_(signal), file_(file) {
    struct sigaction found {};
    if (sigaction(signal, nullptr, &found) != 0) throw std::runtime_error("no such signal");
    handler_ = found.sa_handler;
    if (fstat(file, &opened_) != 0) throw std::runtime_error("no such file");
  }

  // Where nobody could take the GIL for `limit`, a warning on standard error has the stacks, once
  // each time. Throws std::system_error where no thread can be started.
  void watchFor(std::chrono::milliseconds limit) {
    watcher_ = std::thread([this, limit] { watch(limit); });
  }

  // Before the interpreter ends.
  void end() {
    if (process_ != getpid()) return;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    if (watcher_.joinable()) watcher_.join();
    probe_.finish();
  }

  // Empty where the GIL could be had: ask Python.
  std::string stacksIfHeld() {
    if (process_ != getpid() || hasEnded() || probe_.succeeds(kPatience)) return {};
    return stacks();
  }

 private:
  bool hasEnded() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  bool endsWithin(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return ended_; });
  }

  // Looks four times within the limit, as weft-hangs does.
  void watch(std::chrono::milliseconds limit) try {
    pthread_setname_np(pthread_self(), "weft-gil");
    const int slices = static_cast<int>(limit / kSlice) + 1;
    while (!endsWithin(limit / 4)) {
      if (probe_.succeeds(slices)) continue;
      std::ostringstream text;
      text << "a thread has held Python's lock for " << std::chrono::duration<double>(limit).count()
           << " s, so no other one runs Python; they are at, the last calls first:\n"
           << stacks();
      // Python's logging would wait for the lock, too.
      if (logLevel() <= LogLevel::kWarning) logToStandardError(LogLevel::kWarning, text.str());
      while (!probe_.succeeds(slices)) {
      }
    }
  } catch (const std::exception& error) {
    logWarning(std::string("a thread that holds Python's lock is not reported: ") + error.what());
  }

  // A program may close all files, and its next one has the number then.
  bool isOpen() const {
    struct stat now {};
    return fstat(file_, &now) == 0 && now.st_dev == opened_.st_dev && now.st_ino == opened_.st_ino;
  }

  std::string stacks() {
    const std::lock_guard lock(mutex_);
    struct sigaction now {};
    if (sigaction(signal_, nullptr, &now) != 0 || now.sa_handler != handler_) {
      return "unknown, since the program handles signal " + std::to_string(signal_) +
             " (WEFT_STACKS_SIGNAL)";
    }
    if (ended_ || !isOpen() || ftruncate(file_, 0) != 0 || lseek(file_, 0, SEEK_SET) != 0)
      return {};
    handler_(signal_);
    std::string text;
    std::array<char, 4096> part{};
    while (true) {
      const ssize_t size = pread(file_, part.data(), part.size(), static_cast<off_t>(text.size()));
      if (size <= 0) return readable(text);
      text.append(part.data(), static_cast<std::size_t>(size));
    }
  }

  const pid_t process_ = getpid();
  const int signal_;
  const int file_;
  void (*handler_)(int) = nullptr;
  struct stat opened_ {};
  GilProbe probe_;
  std::thread watcher_;
  std::mutex mutex_;  // guards what follows, and the file
  std::condition_variable changed_;
  bool ended_ = false;
};

// Answers peers.
class Service final : public ScriptService {
 public:
  c10::intrusive_ptr<Future> run(const std::string& name, std::vector<at::IValue>&) override {
    if (name != kName) return nullptr;
    Armed* const armed = answers ? now.load() : nullptr;
    auto answer = c10::make_intrusive<Future>(c10::StringType::get());
    answer->markCompleted(armed == nullptr ? std::string() : armed->stacksIfHeld());
    return answer;
  }

  std::atomic<bool> answers{false};
  std::atomic<Armed*> now{nullptr};  // never freed: a thread may be in it while the process ends
};

Service& service() {
  static auto* const one = [] {
    auto* const made = new Service;  // never destroyed: calls may come while the process exits
    addScriptService(made);
    return made;
  }();
  return *one;
}

void arm(int signal, int file, double limit) {
  auto* const armed = new Armed(signal, file);
  service().now = armed;
  const std::chrono::milliseconds time(static_cast<std::int64_t>(limit * 1000));
  if (time.count() > 0) armed->watchFor(time);
}

void disarm() {
  if (Armed* const armed = service().now.exchange(nullptr)) armed->end();
}

std::shared_ptr<torch::jit::PythonFutureWrapper> ask(const std::string& worker, float timeout) {
  static const c10::QualifiedName name(kName);
  static const c10::FunctionSchema schema(kName, "", {},
                                          {c10::Argument("", c10::StringType::get())});
  const auto send = [&] {
    const py::gil_scoped_release no_gil;
    return torch::distributed::rpc::rpcTorchscript(worker, name, schema, {}, timeout);
  };
  return std::make_shared<torch::jit::PythonFutureWrapper>(send());
}

}  // namespace

void bindHeldGil(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  module.def("_arm_stacks", &arm, py::arg("signal"), py::arg("file"), py::arg("limit"), no_gil,
             "While the GIL is held, stacks are had by this signal's handler, which writes to the "
             "file; after so many seconds (0: never) they are logged.");
  module.def("_disarm_stacks", &disarm, no_gil, "Before Python ends.");
  module.def(
      "_answer_about_stacks", [](bool yes) { service().answers = yes; }, py::arg("yes"),
      "Whether peers that ask get stacks.");
  module.def("_ask_for_stacks", &ask, py::arg("worker"), py::arg("timeout"),
             "The stacks of a worker in which a thread holds the GIL; else an empty text.");
}

}  // namespace weft::rpc
