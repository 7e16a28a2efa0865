// Listener: one listening socket, which accepts connections, some at a time.
//
// Threads: the endpoint's loop thread. Ownership: owns the listening socket; the callback owns the
// accepted ones. Failure: a connection for which the system has no descriptor gets the spare one.
// If that is in use, or without memory, connections stay in the backlog; the log says so, once
// a minute, and the listener tries again shortly.
#pragma once

#include <functional>
#include <string>

#include "transport/base/os/unique_fd.h"
#include "transport/connect/endpoint_context.h"
#include "transport/io/event_loop.h"
#include "transport/io/poll.h"
#include "transport/io/timer.h"

struct sockaddr_storage;

namespace weft::transport {

class Listener {
 public:
  // A connected socket, non-blocking, and where it comes from. What it throws is as a failure.
  using Accepted = std::function<void(UniqueFd fd, const sockaddr_storage& from)>;

  Listener(const EndpointContext& context, UniqueFd fd, Accepted accepted);

 private:
  void onReadable();
  void acceptSome();
  void tryAgainSoon(const std::string& why);

  const EndpointContext& context_;
  const UniqueFd fd_;
  const Accepted accepted_;
  Poll poll_;
  Timer retry_;
  EventLoop::Clock::time_point warn_again_at_{};
};

}  // namespace weft::transport
