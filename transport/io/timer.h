// Timer: calls back once, or again and again (uv_timer_t).
//
// Threads: the loop thread. It may be destroyed inside its callback. What that throws is logged.
#pragma once

#include <chrono>
#include <functional>

namespace weft::transport {

class EventLoop;

class Timer {
 public:
  Timer(EventLoop& loop, std::function<void()> callback);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start(std::chrono::milliseconds delay,
             std::chrono::milliseconds repeat = std::chrono::milliseconds(0));
  void cancel();

 private:
  struct State;
  State* state_;
};

}  // namespace weft::transport
