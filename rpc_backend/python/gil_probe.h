// GilProbe: whether Python's lock (the GIL) can be had, found out by a thread of its own that takes
// it and lets go of it.
//
// It says no also where hundreds of threads that run Python are ahead of that thread, and where
// sys.setswitchinterval() makes them keep the lock for longer than somebody waits here.
//
// Threads: any, without the GIL.
// Failure: begin() throws std::system_error where no thread can be started; a later one may
// succeed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace weft::rpc {

class GilProbe {
 public:
  static constexpr auto kSlice = std::chrono::milliseconds(50);

  class Attempt {
   public:
    // Whether the GIL is had within so many slices. In slices, because a process that was stopped
    // for long has had no chance: it counts as one.
    bool succeedsWithin(int slices);
    bool hasSucceeded();

   private:
    friend class GilProbe;
    void make();

    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
  };

  // One at a time, since more would only pile up while the GIL is held: that under way, or a new
  // one.
  std::shared_ptr<Attempt> begin();
  // Waits for the one under way.
  void finish();

 private:
  std::mutex mutex_;
  std::shared_ptr<Attempt> attempt_;
};

}  // namespace weft::rpc
