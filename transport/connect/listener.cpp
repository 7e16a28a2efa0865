#include "transport/connect/listener.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/os/system_error.h"
#include "transport/base/thrown.h"

namespace weft::transport {
namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr std::chrono::milliseconds kRetry{100};
constexpr std::chrono::minutes kWarnEvery{1};

}  // namespace

Listener::Listener(const EndpointContext& context, UniqueFd fd, Accepted accepted)
    : context_(context),
      fd_(std::move(fd)),
      accepted_(std::move(accepted)),
      poll_(context.loop, fd_.get(), [this](Poll::Ready) { onReadable(); }),
      retry_(context.loop, [this] { poll_.want(true, false); }) {
  poll_.want(true, false);
}

void Listener::onReadable() {
  if (const auto thrown = thrownBy([&] { acceptSome(); })) tryAgainSoon(*thrown);
}

void Listener::acceptSome() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    UniqueFd fd(::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&from), &length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      accepted_(std::move(fd), from);
      continue;
    }
    const int error = errno;
    if (error == EINTR || error == ECONNABORTED) continue;
    if (error == EAGAIN) return;
    if (context_.spare.giveUpFor(error)) continue;
    return tryAgainSoon(errnoText(error));
  }
}

// Asking again at once would keep a core busy.
void Listener::tryAgainSoon(const std::string& why) {
  poll_.want(false, false);
  retry_.start(kRetry);
  const auto now = EventLoop::Clock::now();
  if (now < warn_again_at_) return;
  warn_again_at_ = now + kWarnEvery;
  log(LogLevel::kWarning, "cannot accept a connection (" + why + "); trying again shortly");
}

}  // namespace weft::transport
