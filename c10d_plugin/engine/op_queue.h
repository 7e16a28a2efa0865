// OpQueue: whose context it is in a group. One operation runs at a time, in the order they came.
//
// A synchronous call that finds nothing before it runs on its own thread (tryEnter, leave); all
// others are tasks for the queue's threads. One thread is started by the first task. A task's
// finish() may run user callbacks, which may block and may wait for operations of this very queue;
// so it runs without the context, and when all threads are in such a finish() another one is
// started (at most kMostThreads).
//
// Threads: any thread may call any member, also from a task's finish(). No lock is held while a
// task runs. Knows nothing of torch.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

namespace weft::collectives {

class OpQueue {
 public:
  class Task {
   public:
    virtual ~Task() = default;
    virtual void run() noexcept = 0;     // with the context
    virtual void finish() noexcept = 0;  // without it
    // Whether finish() runs code of others, which may block. Asked after run().
    virtual bool finishMayBlock() noexcept = 0;
  };

  static constexpr std::size_t kMostThreads = 64;

  OpQueue();
  // Does not wait: a thread inside a task ends after it, and drops what it holds.
  ~OpQueue();
  OpQueue(const OpQueue&) = delete;
  OpQueue& operator=(const OpQueue&) = delete;

  // True: nothing runs or waits, and the context is the caller's until leave().
  bool tryEnter();
  void leave();

  // False when the queue was closed; the task is then not run.
  bool push(std::unique_ptr<Task> task);

  // True once nothing runs or waits; false when `limit` passed first.
  bool drain(std::chrono::milliseconds limit);

  // No task is taken any more; what waits still runs. Then the threads end.
  void close();
  // True once every thread has ended, as far as it touches anything of others. Not from a task.
  bool waitForThreads(std::chrono::milliseconds limit);

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // shared with the threads, which may outlive this
};

}  // namespace weft::collectives
