// SpareDescriptor: a descriptor that is held back, so that a process at its limit can still make
// the one connection without which it would lose a peer.
//
// Threads: one at a time.
#pragma once

#include <fcntl.h>

#include <cerrno>

#include "transport/base/unique_fd.h"

namespace weft::transport {

class SpareDescriptor {
 public:
  // After a call that failed with this errno. True: there was none left, and one is free now.
  bool giveUpFor(int error) noexcept {
    if ((error != EMFILE && error != ENFILE) || !fd_.valid()) return false;
    fd_.reset();
    return true;
  }
  // To be called now and then: takes one when there is none.
  void refill() noexcept {
    if (!fd_.valid()) fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }

 private:
  UniqueFd fd_;
};

}  // namespace weft::transport
