// HeldStacks: the stacks of Python's threads while one of them holds the GIL for long, as native
// code may.
//
// No other thread runs Python then. Python's faulthandler has a signal handler that writes all
// stacks into a file without the GIL; weft/_observe/held_gil.py registers it beforehand. It is
// called here as a function: no signal is sent, so none interrupts a thread, and none ends a
// process whose program has taken the signal for itself.
//
// The handler reads frames that a thread with the GIL changes. So it is called only where nobody
// could take the GIL for a while, and what it wrote is dropped if the GIL was had before its end.
// That is likely enough, not certain: where native code returns in the milliseconds of the dump and
// its thread keeps the GIL, the thread's frames change while they are read.
//
// Threads: any, without the GIL. A forked child has no part in its parent's, whose threads it
// lacks; it makes its own.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "rpc_backend/python/gil_probe.h"

namespace weft::rpc {

class HeldStacks {
 public:
  // `file` is what the signal's handler, faulthandler's, writes to; `main` is the main thread's
  // number in Python. Throws std::runtime_error, also where the handler differs from the first one
  // that was seen here or in the parent of a forked child: the program has taken the signal.
  HeldStacks(int signal, int file, std::uint64_t main);

  // Where nobody could take the GIL for `limit`, a warning on standard error has the stacks, once
  // each time. Once; where no thread can be started, a warning says so.
  void watchFor(std::chrono::milliseconds limit);
  // Before the interpreter ends.
  void end();
  // For a peer that asks: waits up to 1.5 s for the GIL. Empty where it could be had: ask Python.
  // The main thread comes first, as "Main thread 0x...", unless it is not known: faulthandler
  // writes the newest 100 threads. Throws std::system_error where no thread can be started.
  std::string ifHeld();

 private:
  using Clock = std::chrono::steady_clock;
  using AttemptPtr = std::shared_ptr<GilProbe::Attempt>;

  bool hasEnded();
  bool endsWithin(std::chrono::milliseconds time);
  void watch(std::chrono::milliseconds limit);
  void look(std::chrono::milliseconds limit);
  // None once the attempt has succeeded, or at the end. Those that were begun since `since` during
  // the same attempt will do.
  std::optional<std::string> during(const AttemptPtr& attempt, Clock::time_point since);
  std::string dump();
  bool isOpen() const;

  const pid_t process_ = getpid();
  const int signal_;
  const int file_;
  const std::uint64_t main_;
  void (*handler_)(int) = nullptr;
  struct stat opened_ {};
  GilProbe probe_;
  std::thread watcher_;
  std::mutex mutex_;  // guards what follows, and the file
  std::condition_variable changed_;
  bool ended_ = false;
  AttemptPtr dumped_during_;
  Clock::time_point dumped_at_;
  std::string dumped_;
};

}  // namespace weft::rpc
