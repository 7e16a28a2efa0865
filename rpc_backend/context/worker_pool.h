// Threads that run requests and complete futures.
//
// Tasks begin in the order in which they are given. A task may block, because user code does. So
// the pool has two sizes: `ready` threads share the work, and when all of them are stuck (no task
// has begun for a millisecond while some wait) the pool starts another, up to `limit`. Short tasks
// do not spread over many threads, which would cost a wake-up each, and a nested wait never blocks
// the pool for good. Creating a pool starts no thread. A thread beyond the ready ones that has had
// nothing to do for two seconds leaves.
//
// A thread that cannot be started (the system's limit is reached) costs speed, not tasks: those
// that are there do the work, a warning says so once, and later tasks try again. After prepare()
// there is one for as long as the pool lives.
//
// A forked child has none of the threads. One that returns from the task that forked it ends.
//
// A thread that runs out of work looks for more before it sleeps, one thread at a time: it spins
// for some microseconds (transport/base/spin.h), or it drives what brings tasks (IdleWork), so that
// it takes the next one without a wake-up. The most recently idle thread is woken first: its caches
// are warm.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "transport/base/error.h"
#include "transport/base/spin.h"

namespace weft::rpc {

// What each thread that runs tasks does first, after each task, and last, with no lock held. Each
// may be empty.
struct ThreadHooks {
  std::function<void()> begin;
  std::function<void()> after_task;
  std::function<void()> end;
};

// What a thread does instead of sleeping: it gets tasks by itself.
struct IdleWork {
  // Works until `done()`, with no lock held. False: it cannot, now or any more.
  std::function<bool(const std::function<bool()>& done, transport::AdaptiveSpin& spin)> until;
  // Any thread, with the pool's lock or without: `done()` is to be asked again.
  std::function<void()> wake;
};

class WorkerPool {
 public:
  // `name` is given to the threads (15 characters are shown by the system). `held`: tasks wait for
  // release() before the first begins.
  WorkerPool(std::string name, std::size_t ready, std::size_t limit, ThreadHooks hooks = {},
             bool held = false);
  ~WorkerPool();  // stop(0)
  // Before release(). What it refers to lives until stop() has returned.
  void setIdleWork(IdleWork work);
  void release();
  // Starts the first thread now. Fails where none can be started: tasks might wait for ever.
  transport::Error prepare();

  // Any thread. False when the pool has been stopped: then `task` is left as it was. Throws nothing
  // but std::bad_alloc, with `task` as it was.
  bool run(std::function<void()>&& task);

  enum class Waiting { kDrop, kRun };  // what becomes of tasks that have not begun

  // Drops or runs what waits, then joins the threads. The thread of a task that still runs after
  // `grace` is detached, with a warning that names the pool: user code that never returns must not
  // keep a process from ending. Idempotent. Not from a pool thread.
  void stop(std::chrono::milliseconds grace, Waiting waiting = Waiting::kDrop);

  std::size_t maxThreads() const noexcept { return limit_; }
  std::size_t threads() const;      // alive, those of the pool's own included
  std::size_t idleThreads() const;  // of maxThreads(), those not running a task

 private:
  struct State;  // shared with the threads, so that a detached one may use it
  const std::size_t limit_;
  const std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
