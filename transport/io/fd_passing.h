// Bytes and file descriptors over a connected socket (SCM_RIGHTS). One system call, never blocking.
// Any thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <span>

#include "transport/base/unique_fd.h"

namespace weft::transport {

struct IoResult {
  std::size_t count = 0;  // bytes moved
  int error = 0;          // errno; EAGAIN: nothing moved, try when ready
  bool end = false;       // read only: the peer will send no more
};

// The most descriptors that go with one write.
inline constexpr std::size_t kMaxFds = 16;

// Descriptors that came and wait to be taken, oldest first.
struct ReceivedFds {
  std::deque<UniqueFd> fds;
  bool lost = false;  // some came that this process could not take (too many are open)
};

// The peer gets copies of `fds` (at most kMaxFds, or none) with the first byte.
// ETOOMANYREFS: too many descriptors of this user are on their way; writing succeeds again when
// their receivers have read them, whether or not the socket is writable now.
IoResult sendWithFds(int socket, std::span<iovec> from, std::span<const int> fds) noexcept;

// `received` null: descriptors are not expected, and the kernel closes them.
IoResult receiveWithFds(int socket, std::span<iovec> into, ReceivedFds* received);

}  // namespace weft::transport
