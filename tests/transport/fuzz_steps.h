// Runs what a fuzzer makes of an input on an event loop, which all inputs share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <utility>

#include "transport/io/event_loop.h"

namespace weft::transport {

// Between two calls of step() the loop does what it has to do.
template <typename Run>
void goOn(EventLoop& loop, std::shared_ptr<Run> run, std::promise<void>& done) {
  if (!run->step()) {
    run.reset();
    return done.set_value();
  }
  loop.post([&loop, run = std::move(run), &done]() mutable { goOn(loop, std::move(run), done); });
}

// Makes a Run(loop, data, size) on the loop, and calls its step() until that is false.
template <typename Run>
int runInSteps(const std::uint8_t* data, std::size_t size) {
  static EventLoop& loop = *EventLoop::create("fuzz", EventLoop::Idle::kSleep).value().release();
  std::promise<void> done;
  loop.post([&] { goOn(loop, std::make_shared<Run>(loop, data, size), done); });
  done.get_future().wait();
  return 0;
}

}  // namespace weft::transport
