#include "transport/io/turns/loop_gate.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>

#include "transport/base/check.h"
#include "transport/base/os/system_error.h"

namespace weft::transport {

namespace {

bool control(int epoll, int operation, int fd, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, operation, fd, &event) == 0;
}

// Rounded up: a wait that ends early would be repeated until the time has come.
int millisecondsUntil(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  const auto count = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(count, 0, INT_MAX));
}

}  // namespace

Result<std::unique_ptr<LoopGate>> LoopGate::create(int loop_fd) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return systemError("epoll_create1", errno);
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.valid()) return systemError("eventfd", errno);
  // The kernel closes it (EPOLLONESHOT) when it has woken the thread for the loop.
  if (!control(epoll.get(), EPOLL_CTL_ADD, loop_fd, EPOLLONESHOT) ||
      !control(epoll.get(), EPOLL_CTL_ADD, bell.get(), EPOLLIN)) {
    return systemError("epoll_ctl", errno);
  }
  return std::unique_ptr<LoopGate>(new LoopGate(std::move(epoll), std::move(bell), loop_fd));
}

void LoopGate::watch(bool on) noexcept {
  const std::uint32_t events = EPOLLONESHOT | (on ? EPOLLIN : 0U);
  WEFT_CHECK(control(epoll_.get(), EPOLL_CTL_MOD, loop_fd_, events),
             "the loop's descriptor is not watched any more");
}

void LoopGate::ring() noexcept {
  const std::uint64_t one = 1;
  const ssize_t written = ::write(bell_.get(), &one, sizeof(one));
  // It is full after 2^64 - 2 rings, and readable then.
  static_cast<void>(written);
}

LoopGate::Woken LoopGate::wait(Deadline deadline) noexcept {
  std::array<epoll_event, 2> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 millisecondsUntil(deadline));
  Woken woken = count == 0 ? Woken::kLate : Woken::kRung;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == loop_fd_) {
      woken = Woken::kReady;
    } else {
      std::uint64_t rings = 0;
      const ssize_t read = ::read(bell_.get(), &rings, sizeof(rings));
      static_cast<void>(read);  // it was readable
    }
  }
  return woken;
}

}  // namespace weft::transport
