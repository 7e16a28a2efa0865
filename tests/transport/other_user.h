// A thread that belongs to another user of the host.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <thread>

namespace weft::transport {

constexpr uid_t kOtherUser = 65534;

// Runs `what` on a thread whose user is kOtherUser, and so are those of the threads it starts.
// False when this process may not become another user. The bare system call changes one thread,
// where setresuid() of the C library changes all.
inline bool asAnotherUser(const std::function<void()>& what) {
  bool changed = false;
  std::thread([&] {
    changed = ::syscall(SYS_setresuid, kOtherUser, kOtherUser, kOtherUser) == 0;
    if (changed) what();
  }).join();
  return changed;
}

}  // namespace weft::transport
