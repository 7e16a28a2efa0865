// EventLoop: one uv_loop_t, which one thread at a time runs: the loop thread. Everything that
// touches a libuv handle runs on it, and asserts so.
//
// The loop has a thread of its own. A thread that waits for what the loop brings may run it
// meanwhile (drive()), and is then the loop thread: so it is woken by the network itself, and no
// thread has to wake it. LoopTurns says whose turn it is.
//
// Threads: post(), inLoop(), drive() and wakeDriver(): any; stop(): any but the loop thread; the
// rest, with Poll (poll.h) and Timer (timer.h): the loop thread. Failure: create() returns it. What
// a task or callback throws is logged, and the loop goes on; the callback's owner must have its own
// state in order before it throws.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transport/base/driver.h"
#include "transport/base/error.h"
#include "transport/base/spin.h"
#include "transport/io/turns/loop_turns.h"

struct uv_loop_s;

namespace weft::transport {

class Timer;

class EventLoop {
 public:
  using Task = std::function<void()>;
  using Clock = std::chrono::steady_clock;

  // Starts the thread; it appears as `thread_name` (at most 15 characters) in the system's lists.
  // All signals are blocked on it. kSpin: out of work, it looks for more for a moment before it
  // sleeps (AdaptiveSpin).
  enum class Idle : std::uint8_t { kSpin, kSleep };
  static Result<std::unique_ptr<EventLoop>> create(const std::string& thread_name,
                                                   Idle idle = Idle::kSpin);
  ~EventLoop();  // stop()
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs `task` on the loop thread, after all that was posted before. Wake-ups are
  // coalesced. False: the loop is stopped, the task was dropped.
  bool post(Task task);

  // Runs `task` once on the loop thread after `delay`. Loop thread only. Dropped by stop().
  void runAfter(std::chrono::milliseconds delay, Task task);

  bool inLoop() const noexcept { return std::this_thread::get_id() == loop_thread_.load(); }
  void assertInLoop() const noexcept;

  // Runs the loop on the calling thread, which holds no lock that a task or callback takes, until
  // `done()`. Another thread that makes `done()` true calls wakeDriver() afterwards. `spin`: the
  // thread's own. One thread of each kind at a time.
  Driven drive(Driver kind, const std::function<bool()>& done, Deadline deadline,
               AdaptiveSpin& spin);
  void wakeDriver(Driver kind) { turns_.ring(kind); }

  // Drops what is posted but not yet run, ends the thread and joins it. Every Poll and Timer
  // must be gone by then. Drivers leave first. Idempotent; not from the loop thread.
  void stop();

 private:
  friend class Poll;
  friend class Timer;
  struct Handles;
  explicit EventLoop(Idle idle);
  void run();
  bool runReady(bool wait = false);
  Deadline nextTimer();
  void closeHandles();
  void drain();
  uv_loop_s* uv() noexcept;
  // Something came from outside.
  void noteWork() noexcept { ++work_; }

  const Idle idle_;
  std::unique_ptr<Handles> handles_;
  std::thread thread_;
  LoopTurns turns_;
  std::mutex running_mutex_;  // held by the thread that runs the loop
  std::atomic<std::thread::id> loop_thread_{};

  std::mutex mutex_;
  std::vector<Task> posted_;   // guarded by mutex_
  bool signalled_ = false;     // guarded by mutex_: a wake-up is on its way
  bool stopping_ = false;      // guarded by mutex_
  std::uint64_t work_ = 0;     // loop thread: counts what came from outside
  bool alive_ = true;          // loop thread: the loop has handles
  std::vector<Task> running_;  // loop thread: the batch in hand; its memory is reused
  std::list<std::unique_ptr<Timer>> delayed_;  // loop thread: timers of runAfter()
};

}  // namespace weft::transport
