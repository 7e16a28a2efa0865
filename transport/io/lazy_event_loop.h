// LazyEventLoop: an event loop whose thread starts when it is first wanted.
//
// Threads: get() by one thread only; stop() and abandonAfterFork() once that thread calls it no
// more.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "transport/base/log.h"
#include "transport/io/event_loop.h"

namespace weft::transport {

class LazyEventLoop {
 public:
  explicit LazyEventLoop(std::string thread_name) : thread_name_(std::move(thread_name)) {}

  // Null: the system gave no thread; the log says why.
  EventLoop* get() {
    if (loop_ == nullptr) {
      Result<std::unique_ptr<EventLoop>> made =
          EventLoop::create(thread_name_, EventLoop::Idle::kSleep);
      if (made.ok()) {
        loop_ = std::move(made).value();
      } else {
        log(LogLevel::kWarning, made.error().text());
      }
    }
    return loop_.get();
  }
  void stop() {
    if (loop_ != nullptr) loop_->stop();
  }
  void abandonAfterFork() noexcept {
    if (loop_ != nullptr) loop_->abandonAfterFork();
  }

 private:
  const std::string thread_name_;
  std::unique_ptr<EventLoop> loop_;
};

}  // namespace weft::transport
