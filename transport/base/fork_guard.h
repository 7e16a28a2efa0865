// ForkGuard: whether this is still the process in which something was made. A forked child has a
// copy of its parent's memory, but neither its threads nor a share in its locks.
//
// Threads: any. Costs a load: the C library tells of each fork (pthread_atfork).
#pragma once

#include <cstdint>

namespace weft::transport {

class ForkGuard {
 public:
  ForkGuard() : generation_(generation()) {}
  // False in a child that was forked since this was made.
  bool inOwnProcess() const noexcept { return generation_ == generation(); }

 private:
  // How many forks lead from the first caller's process to this one.
  static std::uint32_t generation() noexcept;

  std::uint32_t generation_;
};

}  // namespace weft::transport
