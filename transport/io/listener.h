// Listener: accepts the connections of one listening socket. Threads: the loop thread. Failure: it
// logs, and tries again.
#pragma once

#include <functional>
#include <memory>

#include "transport/base/unique_fd.h"
#include "transport/io/event_loop.h"

namespace weft::transport {

class Listener {
 public:
  using Accepted = std::function<void(UniqueFd)>;  // non-blocking, closed on exec
  Listener(EventLoop& loop, UniqueFd fd, Accepted accepted);

 private:
  void onReadable();

  UniqueFd fd_;
  Accepted accepted_;
  EventLoop::Poll poll_;
  EventLoop::Timer retry_;
};

}  // namespace weft::transport
