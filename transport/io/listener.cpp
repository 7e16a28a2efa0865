#include "transport/io/listener.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/system_error.h"

namespace weft::transport {
namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr std::chrono::milliseconds kRetry{100};

}  // namespace

Listener::Listener(EventLoop& loop, UniqueFd fd, Accepted accepted)
    : fd_(std::move(fd)),
      accepted_(std::move(accepted)),
      poll_(loop, fd_.get(), [this](EventLoop::Poll::Ready) { onReadable(); }),
      retry_(loop, [this] { poll_.want(true, false); }) {
  poll_.want(true, false);
}

void Listener::onReadable() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      accepted_(std::move(fd));
      continue;
    }
    const int error = errno;
    if (error == EINTR || error == ECONNABORTED) continue;
    if (error == EAGAIN) return;
    // Out of descriptors or memory: the connection stays in the backlog. Asking again at
    // once would keep a core busy.
    log(LogLevel::kWarning,
        "cannot accept a connection (" + errnoText(error) + "); trying again shortly");
    poll_.want(false, false);
    retry_.start(kRetry);
    return;
  }
}

}  // namespace weft::transport
