#include "rpc_backend/python/held_stacks.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "rpc_backend/core/log.h"

namespace weft::rpc {

namespace {

constexpr int kPatience = 30;  // slices that a peer's question waits for the GIL

using Handler = void (*)(int);

// The signal's handler, which faulthandler has just registered. In a forked child it may be
// another: faulthandler does not take a signal again that it had in the parent, and the program may
// have taken it in between.
Handler handlerOf(int signal) {
  static std::atomic<Handler> first{nullptr};
  struct sigaction found {};
  if (sigaction(signal, nullptr, &found) != 0) throw std::runtime_error("no such signal");
  Handler known = nullptr;
  if (!first.compare_exchange_strong(known, found.sa_handler) && known != found.sa_handler) {
    throw std::runtime_error("the program handles signal " + std::to_string(signal) +
                             " by now; choose another by WEFT_STACKS_SIGNAL");
  }
  return found.sa_handler;
}

// What faulthandler wrote: the main thread, if it is there, then the others, the oldest first,
// without those that are not in Python.
std::string readable(const std::string& dump, std::uint64_t main) {
  std::array<char, 32> head{};
  std::snprintf(head.data(), head.size(), "Thread 0x%016llx ",
                static_cast<unsigned long long>(main));
  std::string first;
  std::string others;
  for (std::size_t from = 0; from < dump.size();) {
    const std::size_t end = std::min(dump.find("\n\n", from), dump.size());
    std::string thread = dump.substr(from, end - from);
    from = end + 2;
    if (thread.find("<no Python frame>") != std::string::npos) continue;
    if (thread.ends_with('\n')) thread.pop_back();
    if (thread.starts_with(head.data())) {
      first = "Main t" + thread.substr(1);
    } else {
      others.insert(0, thread + (others.empty() ? "\n" : "\n\n"));
    }
  }
  if (first.empty()) return others;
  return first + (others.empty() ? "\n" : "\n\n") + others;
}

void warnUnreported(const std::exception& error) {
  logWarning(std::string("a thread that holds Python's lock is not reported: ") + error.what());
}

}  // namespace

HeldStacks::HeldStacks(int signal, int file, std::uint64_t main)
    : signal_(signal), file_(file), main_(main), handler_(handlerOf(signal)) {
  if (fstat(file, &opened_) != 0) throw std::runtime_error("no such file");
}

void HeldStacks::watchFor(std::chrono::milliseconds limit) try {
  watcher_ = std::thread([this, limit] { watch(limit); });
} catch (const std::system_error& error) {
  warnUnreported(error);
}

void HeldStacks::end() {
  if (process_ != getpid()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
  probe_.finish();
}

std::string HeldStacks::ifHeld() {
  if (process_ != getpid() || hasEnded()) return {};
  const auto since = Clock::now();
  const AttemptPtr attempt = probe_.begin();
  if (attempt->succeedsWithin(kPatience)) return {};
  return during(attempt, since).value_or(std::string());
}

bool HeldStacks::hasEnded() {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool HeldStacks::endsWithin(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return ended_; });
}

// Looks four times within the limit, as weft-hangs does.
void HeldStacks::watch(std::chrono::milliseconds limit) {
  pthread_setname_np(pthread_self(), "weft-gil");
  bool warned = false;
  while (!endsWithin(limit / 4)) {
    try {
      look(limit);
    } catch (const std::exception& error) {
      // There may be a thread, or memory, for the next look.
      if (!std::exchange(warned, true)) warnUnreported(error);
    }
  }
}

void HeldStacks::look(std::chrono::milliseconds limit) {
  const int slices = static_cast<int>(limit / GilProbe::kSlice) + 1;
  const AttemptPtr attempt = probe_.begin();
  if (attempt->succeedsWithin(slices)) return;
  const std::optional<std::string> stacks = during(attempt, Clock::now());
  if (!stacks) return;
  std::ostringstream text;
  text << "a thread has held Python's lock for " << std::chrono::duration<double>(limit).count()
       << " s, so no other one runs Python; they are at, the last calls first:\n"
       << *stacks;
  // Python's logging would wait for the lock, too.
  if (logLevel() <= LogLevel::kWarning) logToStandardError(LogLevel::kWarning, text.str());
  while (!hasEnded() && !attempt->succeedsWithin(slices)) {
  }
}

std::optional<std::string> HeldStacks::during(const AttemptPtr& attempt, Clock::time_point since) {
  const std::lock_guard lock(mutex_);  // for which others' dumps may have taken long
  if (ended_ || attempt->hasSucceeded()) return std::nullopt;
  if (dumped_during_ != attempt || dumped_at_ < since) {
    dumped_at_ = Clock::now();
    dumped_ = dump();
    dumped_during_ = attempt;
    if (attempt->hasSucceeded()) return std::nullopt;  // frames may have changed meanwhile
  }
  return dumped_;
}

std::string HeldStacks::dump() {
  struct sigaction now {};
  if (sigaction(signal_, nullptr, &now) != 0 || now.sa_handler != handler_) {
    return "unknown, since the program handles signal " + std::to_string(signal_) +
           " (WEFT_STACKS_SIGNAL)";
  }
  if (!isOpen() || ftruncate(file_, 0) != 0 || lseek(file_, 0, SEEK_SET) != 0)
    return "unknown, since the program has closed the file for them";
  handler_(signal_);
  std::string text;
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t size = pread(file_, part.data(), part.size(), static_cast<off_t>(text.size()));
    if (size <= 0) return readable(text, main_);
    text.append(part.data(), static_cast<std::size_t>(size));
  }
}

// A program may close all files, and its next one has the number then.
bool HeldStacks::isOpen() const {
  struct stat now {};
  return fstat(file_, &now) == 0 && now.st_dev == opened_.st_dev && now.st_ino == opened_.st_ino;
}

}  // namespace weft::rpc
