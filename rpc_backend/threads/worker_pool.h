// WorkerPool: threads that run requests and complete futures.
//
// Tasks begin in the order in which they are given. A task may block, because user code does. So
// the pool has two sizes: `ready` threads share the work, and if all of them are stuck (no task has
// begun for a millisecond while some wait) the pool starts another, up to `limit`. So short tasks
// do not spread over many threads, which would cost a wake-up each, and nested waits never block
// the pool for good. Creating a pool starts no thread. A thread beyond the ready ones ends if it
// has had nothing to do for two seconds.
//
// If a thread cannot be started (the system's limit is reached), the other threads do the work, a
// warning says so once, and later tasks try again. After prepare() the pool always has one thread.
//
// A forked child has none of the threads. A thread that forked inside a task ends in the child when
// the task returns.
//
// Before a thread without work sleeps, it looks for more, one thread at a time: it spins for some
// microseconds (transport/base/spin.h). Instead it may do what brings tasks (IdleWork, of which
// there is one for each thread that may do so at a time), so that it takes the next task without a
// wake-up. The most recently idle thread is woken first, because its caches are warm.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "rpc_backend/threads/idle_searches.h"
#include "transport/base/error.h"

namespace weft::rpc {

// What each thread that runs tasks calls first, after each task, and last, with no lock held. Each
// may be empty.
struct ThreadHooks {
  std::function<void()> begin;
  std::function<void()> after_task;
  std::function<void()> end;
};

class WorkerPool {
 public:
  // `name` is given to the threads (15 characters are shown by the system). `held`: tasks wait for
  // release() before the first begins.
  WorkerPool(std::string name, std::size_t ready, std::size_t limit, ThreadHooks hooks = {},
             bool held = false);
  ~WorkerPool();  // stop(0)
  // For one thread at a time. Before release(). What it refers to lives until stop() has returned.
  void addIdleWork(IdleWork work);
  void release();
  // Starts the first thread now. An error: none can be started, so tasks might wait for ever.
  transport::Error prepare();

  // Any thread. False: the pool has been stopped, and `task` is unchanged. Throws only
  // std::bad_alloc, with `task` unchanged.
  bool run(std::function<void()>&& task);

  // On a thread that brings something by its IdleWork: it runs `task` as soon as that ends, also
  // after stop(). False: this thread is none of these, has a task already, or would be the last one
  // that may run others; `task` is unchanged.
  bool runNext(std::function<void()>&& task);

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
