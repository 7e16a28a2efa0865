// Threads that run requests and complete futures.
//
// A thread is started when work waits and none is idle, up to the limit; importing
// Weft or creating a pool starts none. Tasks run in the order they were given. A task
// may block (user code does): that is why completions have a pool of their own, whose limit is
// high enough for callbacks that wait for further calls.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace weft::rpc {

class WorkerPool {
 public:
  // `name` is given to the threads (15 characters are shown by the system).
  WorkerPool(std::string name, std::size_t max_threads);
  ~WorkerPool();   // stop(0)

  // Any thread. False when the pool has been stopped: the task is dropped.
  bool run(std::function<void()> task);

  enum class Waiting { kDrop, kRun };   // what becomes of tasks that have not begun

  // Drops or runs what waits, then joins the threads. A task still running after `grace` is left
  // to itself (its thread is detached and a warning names the pool): user code that never
  // returns must not keep a process from ending. Idempotent. Not from a pool thread.
  void stop(std::chrono::milliseconds grace, Waiting waiting = Waiting::kDrop);

  std::size_t maxThreads() const noexcept { return max_threads_; }
  std::size_t threads() const;       // started so far
  std::size_t idleThreads() const;   // of max_threads, those not running a task

 private:
  struct State;   // shared with the threads, so that a detached one stays sound
  static void work(const std::shared_ptr<State>& state);

  const std::size_t max_threads_;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
