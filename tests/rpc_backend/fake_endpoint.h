// FakeEndpoint: what an agent sends and plans goes no further than here, and the test looks at it.
//
// Threads: any. No thread is the loop thread.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/endpoint.h"

namespace weft::rpc::testing {

class FakeEndpoint final : public transport::Endpoint {
 public:
  struct Planned {
    std::chrono::milliseconds delay;
    std::function<void()> task;
  };

  const std::string& address() const override { return address_; }
  transport::Error addPeer(const transport::PeerInfo&) override { return transport::Error::ok(); }
  void setPeerAddress(std::int32_t, const std::string&) override {}
  void removePeer(std::int32_t) override {}
  void losePeer(std::int32_t, transport::Error) override {}
  transport::Error send(std::int32_t, transport::Message, std::chrono::milliseconds wait) override {
    const std::lock_guard lock(mutex_);
    waits_.push_back(wait);
    return transport::Error::ok();
  }
  void runAfter(std::chrono::milliseconds delay, std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    planned_.push_back({delay, std::move(task)});
  }
  bool onLoopThread() const noexcept override { return false; }
  transport::Driven drive(transport::Driver, const std::function<bool()>&, transport::Deadline,
                          transport::AdaptiveSpin&) override {
    return transport::Driven::kStopped;
  }
  void wakeDriver(transport::Driver) override {}
  transport::EndpointStats stats() const override { return {}; }
  void close(std::chrono::milliseconds) override { planned(); }

  // How long each message might wait for room.
  std::vector<std::chrono::milliseconds> waits() const {
    const std::lock_guard lock(mutex_);
    return waits_;
  }
  // The tasks that wait for their time, which the caller takes.
  std::vector<Planned> planned() {
    const std::lock_guard lock(mutex_);
    return std::exchange(planned_, {});
  }

 private:
  const std::string address_ = "weft1;tcp=127.0.0.1:9";
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::chrono::milliseconds> waits_;
  std::vector<Planned> planned_;
};

}  // namespace weft::rpc::testing
