// LoopTurns: which of the threads that may run an event loop is woken when it has something to do.
//
// Leader and followers (Schmidt et al., 2000). The loop's own thread always waits; others, of which
// there is one of each Driver kind, come and go. The thread that came last is woken: it waits for
// something that is about to come, and no other thread has to wake up then. While a thread runs the
// loop nobody is woken.
//
// Threads: any. Failure: kTaken where the system has no descriptors for another gate.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/base/deadline.h"
#include "transport/base/driver.h"
#include "transport/base/error.h"
#include "transport/io/turns/loop_gate.h"

namespace weft::transport {

class LoopTurns {
 public:
  // The loop's own thread, or a driver's kind.
  using Who = std::size_t;
  static constexpr Who kOwn = kDrivers;
  static Who of(Driver kind) noexcept { return static_cast<Who>(kind); }

  // First. The loop's descriptor (uv_backend_fd).
  void watch(int loop_fd) { loop_fd_ = loop_fd; }
  // Why that driver cannot enter (kTaken, kStopped); nothing: it is in, and leaves by leave().
  std::optional<Driven> enter(Driver kind);
  void leave(Driver kind);
  // Whether a driver ever came; until then the loop is its own thread's alone.
  bool shared() const noexcept { return shared_.load(std::memory_order_acquire); }

  // Sleeps until there is something to do, a timer is due, ring() is called, or `deadline` passes.
  // kReady: nobody else is woken until give().
  LoopGate::Woken wait(Who who, Deadline deadline);
  // Called by a thread that is about to run the loop: nobody is woken until give().
  void take();
  // The loop was run, and its next timer is due at `next_timer`. Wakes a thread that would sleep
  // longer.
  void give(Deadline next_timer);

  // Ends the wait of that driver, if it is in.
  void ring(Driver kind);
  // Waits until all drivers have left; none enters any more.
  void stop();
  bool stopped() const noexcept { return stopped_.load(std::memory_order_acquire); }

 private:
  static constexpr Who kNobody = kDrivers + 1;
  // Opens the gate of the one whose turn it is. With the lock, while nobody runs the loop.
  void choose();

  int loop_fd_ = -1;
  std::mutex mutex_;
  std::condition_variable left_;
  std::array<std::unique_ptr<LoopGate>, kDrivers + 1> gates_;  // made once, never given up
  std::array<Deadline, kDrivers + 1> wakes_at_{};
  std::array<bool, kDrivers> inside_{};
  std::vector<Who> waiting_;  // drivers in wait(), the last to come last
  Who open_ = kNobody;        // whose gate is open
  bool taken_ = false;        // a thread runs the loop
  Deadline next_timer_ = Deadline::max();
  std::atomic<bool> stopped_{false};  // both are written with the lock
  std::atomic<bool> shared_{false};
};

}  // namespace weft::transport
