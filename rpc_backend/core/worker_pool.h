// Threads that run requests and complete futures.
//
// Tasks begin in the order they were given. A task may block: user code does. So the pool has
// two sizes: `ready` threads share the work as it comes, and when they are all stuck (no task
// has begun for a millisecond while some wait) another is started, up to `limit`. Short tasks are
// thus never spread over many threads, which would cost a wake-up each, and a nested
// wait never blocks the pool for good. Importing Weft or creating a pool starts no thread.
//
// A thread that runs out of work looks for more for some microseconds before it sleeps
// (transport/base/spin.h): in a stream of calls the next is then taken without a wake-up. One looks
// at a time, and the one that slept last is woken first: its caches are warm, and threads that were
// needed once do not take turns ever after.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace weft::rpc {

// What each thread that runs tasks does first and last, with no lock held. Either may be empty.
struct ThreadHooks {
  std::function<void()> begin;
  std::function<void()> end;
};

class WorkerPool {
 public:
  // `name` is given to the threads (15 characters are shown by the system).
  WorkerPool(std::string name, std::size_t ready, std::size_t limit, ThreadHooks hooks = {});
  ~WorkerPool();  // stop(0)

  // Any thread. False when the pool has been stopped: the task is dropped.
  bool run(std::function<void()> task);

  enum class Waiting { kDrop, kRun };  // what becomes of tasks that have not begun

  // Drops or runs what waits, then joins the threads. A task still running after `grace` is left
  // to itself (its thread is detached and a warning names the pool): user code that never
  // returns must not keep a process from ending. Idempotent. Not from a pool thread.
  void stop(std::chrono::milliseconds grace, Waiting waiting = Waiting::kDrop);

  std::size_t maxThreads() const noexcept { return limit_; }
  std::size_t threads() const;      // alive, those of the pool's own included
  std::size_t idleThreads() const;  // of maxThreads(), those not running a task

 private:
  struct State;  // shared with the threads, so that a detached one stays sound
  struct Sleeper;
  static void work(const std::shared_ptr<State>& state);
  static void runTasks(const std::shared_ptr<State>& state);
  static void watch(const std::shared_ptr<State>& state);
  // Sees to it that somebody takes what waits. With the lock held; the sleeper returned, if any, is
  // to be woken after it: woken before, it would run into the lock and sleep again.
  [[nodiscard]] static std::shared_ptr<Sleeper> provide(const std::shared_ptr<State>& state);
  static void start(const std::shared_ptr<State>& state,
                    void (*body)(const std::shared_ptr<State>&), const char* suffix);

  const std::size_t limit_;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
