// SpareDescriptor: a descriptor that is held back, so that a process at its limit can still make
// the one connection without which it would lose a peer.
//
// Threads: one at a time.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <chrono>

#include "transport/base/os/unique_fd.h"

namespace weft::transport {

class SpareDescriptor {
 public:
  // After a call that failed with this errno. True: there was none left, and one is free now.
  bool giveUpFor(int error) noexcept {
    if ((error != EMFILE && error != ENFILE) || !fd_.valid()) return false;
    fd_.reset();
    refill_at_ = std::chrono::steady_clock::now() + kHoldOff;
    return true;
  }
  // Call it now and then: it takes a spare when there is none. It waits a while after a spare was
  // given up, because another endpoint of this process may have given up its spare for the same
  // connection.
  void refill() noexcept {
    if (fd_.valid() || std::chrono::steady_clock::now() < refill_at_) return;
    fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }

 private:
  static constexpr std::chrono::seconds kHoldOff{2};

  UniqueFd fd_;
  std::chrono::steady_clock::time_point refill_at_{};
};

}  // namespace weft::transport
