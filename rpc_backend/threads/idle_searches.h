// IdleSearches: where the threads of a WorkerPool that have no task look for one, one thread in
// each place: a thread spins, or does its place's IdleWork.
//
// Threads: the pool's and those that bring tasks, all with the pool's lock, which look() releases.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "transport/base/spin.h"

namespace weft::rpc {

// What a thread does instead of sleeping, to get tasks by itself.
struct IdleWork {
  // Works until `done()`, with no lock held. False: it cannot, at present or any more.
  std::function<bool(const std::function<bool()>& done, transport::AdaptiveSpin& spin)> until;
  // Makes it ask `done()` again. Any thread, with the pool's lock or without.
  std::function<void()> wake;
};

class IdleSearches {
 public:
  struct Place {
    IdleWork work;  // may be empty
    bool taken = false;
    std::thread::id searcher;    // if taken
    std::function<void()> task;  // what the searcher gave itself
    // The searcher may be asleep in its work, and was not woken yet. It sets this again if it was
    // woken for a task that another thread has taken.
    std::atomic<bool> sleeps{false};

    bool isHere() const { return taken && searcher == std::this_thread::get_id(); }
  };

  // The first one takes the place that spins.
  void add(IdleWork work);
  // A place that no thread has taken; null: none.
  Place* free();
  // Looks for a task until `came()`, or until the thread gives itself one, which becomes `task`.
  // `may_work`: also by the place's work. False: there is none, and this thread may sleep.
  bool look(std::unique_lock<std::mutex>& lock, Place& place, bool may_work,
            const std::function<bool()>& came, std::function<void()>& task,
            transport::AdaptiveSpin& spin);

  // How many threads find a task by themselves; a searcher finds what it has brought.
  std::size_t awake() const;
  // One that sleeps, to be woken by its work without the lock; null: none.
  Place* callSleeping();
  void wakeSleeping() const;
  // On a searcher that has given itself no task: its place. Else null.
  Place* ofThisThread();

 private:
  std::deque<Place> places_{1};
};

}  // namespace weft::rpc
