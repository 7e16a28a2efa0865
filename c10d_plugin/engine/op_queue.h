// OpQueue: runs a group's operations one at a time, in the order in which they came.
//
// A synchronous call with nothing before it runs on the calling thread (tryEnter, leave). All other
// operations are tasks for the queue's threads; the first task starts one.
//
// A task's finish() may run user callbacks, which may block, even on later operations of this
// queue. So the next task may run during a finish(), and while all threads are in one that may
// block, a task starts another thread. If no thread can be started, a task runs on the thread that
// pushes it, or, if other threads are in a finish(), after one of these.
//
// Threads: any thread may call any member, also from a task's finish(). No lock is held while a
// task runs. Knows nothing of torch.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>

#include "transport/base/api.h"

namespace weft::collectives {

class WEFT_API OpQueue {
 public:
  class Task {
   public:
    virtual ~Task() = default;
    virtual void run() noexcept = 0;     // no other task runs
    virtual void finish() noexcept = 0;  // the next task may run meanwhile
    // Whether finish() runs callbacks, which may block. Asked after run().
    virtual bool finishMayBlock() noexcept = 0;
  };

  OpQueue();
  // Does not wait: a thread inside a task ends after it.
  ~OpQueue();
  OpQueue(const OpQueue&) = delete;
  OpQueue& operator=(const OpQueue&) = delete;

  // True: nothing runs or waits, and the queue is the caller's until leave().
  bool tryEnter();
  void leave();

  // False when the queue was closed; the task is then not run.
  bool push(std::unique_ptr<Task> task);

  // True once nothing runs or waits; false when `limit` passed first.
  bool drain(std::chrono::milliseconds limit);

  // Refuses new tasks; waiting ones still run. Then the threads end.
  void close();
  // Waits until no other thread touches anything but the queue's own state. Not from a task's
  // run().
  bool waitForThreads(std::chrono::milliseconds limit);

 private:
  struct State;
  using Lock = std::unique_lock<std::mutex>;
  static bool startThread(const std::shared_ptr<State>& state);
  static void work(const std::shared_ptr<State>& state);
  static void workInstead(const std::shared_ptr<State>& state);
  static void runAll(const std::shared_ptr<State>& state, Lock& lock);
  static void runFirst(const std::shared_ptr<State>& state, Lock& lock);
  static void finish(const std::shared_ptr<State>& state, Lock& lock, std::unique_ptr<Task> task);
  static void leaveThreads(State& state);

  std::shared_ptr<State> state_;  // shared with the threads, which may outlive this
};

}  // namespace weft::collectives
