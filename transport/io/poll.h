// Poll: readiness of one file descriptor, as an event loop sees it (uv_poll_t).
//
// Threads: the loop thread. It may be destroyed inside its own callback. Ownership: the descriptor
// is not owned, and must be closed after this is gone. Failure: the callback has an errno. It stops
// polling once its callback has thrown: a descriptor that stays ready would keep the loop busy.
#pragma once

#include <functional>
#include <memory>

namespace weft::transport {

class EventLoop;
class Timer;

class Poll {
 public:
  struct Ready {
    bool readable = false;
    bool writable = false;
    int error = 0;  // a positive errno when polling itself failed, or could not begin
  };
  using Callback = std::function<void(Ready)>;

  Poll(EventLoop& loop, int fd, Callback callback);
  ~Poll();
  Poll(const Poll&) = delete;
  Poll& operator=(const Poll&) = delete;

  void want(bool readable, bool writable);

 private:
  struct State;
  State* state_ = nullptr;         // freed by libuv's close callback
  std::unique_ptr<Timer> cannot_;  // in its place: tells that the descriptor cannot be polled
};

}  // namespace weft::transport
