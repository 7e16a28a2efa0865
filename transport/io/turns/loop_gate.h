// LoopGate: where one thread waits for an event loop that other threads may run, too.
//
// Each thread that may run the loop has a gate of its own, and one gate at a time is open: so when
// something comes, one thread wakes up.
//
// Threads: wait(): one at a time; the rest: any. Ownership: the loop's descriptor is borrowed.
// Failure: create() returns it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "transport/base/deadline.h"
#include "transport/base/error.h"
#include "transport/base/os/unique_fd.h"

namespace weft::transport {

class LoopGate {
 public:
  enum class Woken : std::uint8_t {
    kReady,  // the loop has something to do; the gate is closed
    kRung,
    kLate,  // the deadline has passed, or in LoopTurns a timer is due: run the loop
  };

  // `loop_fd`: becomes readable when the loop has something to do (uv_backend_fd).
  static Result<std::unique_ptr<LoopGate>> create(int loop_fd);

  // Events that are there already when the gate opens count, too.
  void open() noexcept { watch(true); }
  void close() noexcept { watch(false); }
  // Ends a wait, the next one if there is none now.
  void ring() noexcept;
  Woken wait(Deadline deadline) noexcept;

 private:
  LoopGate(UniqueFd epoll, UniqueFd bell, int loop_fd)
      : epoll_(std::move(epoll)), bell_(std::move(bell)), loop_fd_(loop_fd) {}
  void watch(bool on) noexcept;

  const UniqueFd epoll_;
  const UniqueFd bell_;
  const int loop_fd_;
};

}  // namespace weft::transport
