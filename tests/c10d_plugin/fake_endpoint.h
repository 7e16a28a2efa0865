// An endpoint without sockets for the mailbox's tests: what is sent is kept until the test lets it
// go, and what is asked of it is done by the test.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "transport/endpoint.h"

namespace weft::collectives {

class FakeEndpoint final : public transport::Endpoint {
 public:
  static constexpr int kRanks = 3;

  const std::string& address() const override { return address_; }
  transport::Error addPeer(const transport::PeerInfo&) override { return transport::Error::ok(); }
  void setPeerAddress(std::int32_t, const std::string&) override {}
  void removePeer(std::int32_t) override {}
  void losePeer(std::int32_t rank, transport::Error reason) override {
    lost.emplace_back(rank, std::move(reason));
  }
  transport::Error send(std::int32_t to, transport::Message message,
                        std::chrono::milliseconds) override {
    if (const auto meanwhile = std::exchange(before_send, nullptr)) meanwhile();
    if (closed) return {transport::ErrorCode::kShutdown, "it is closed"};
    if (gone.at(static_cast<std::size_t>(to)))
      return {transport::ErrorCode::kPeerLost, "it is lost"};
    headers.emplace_back(to, message.header);
    // Written, and acknowledged later.
    message.until_written.reset();
    kept.push_back(std::move(message));
    return transport::Error::ok();
  }
  void runAfter(std::chrono::milliseconds, std::function<void()> task) override {
    tasks.push_back(std::move(task));
  }
  bool onLoopThread() const noexcept override { return true; }
  transport::Driven drive(transport::Driver, const std::function<bool()>&, transport::Deadline,
                          transport::AdaptiveSpin&) override {
    return transport::Driven::kStopped;
  }
  void wakeDriver(transport::Driver) override {}
  transport::EndpointStats stats() const override { return figures; }
  void close(std::chrono::milliseconds) override {
    closed = true;
    kept.clear();
  }

  std::vector<std::pair<std::int32_t, transport::Error>> lost;
  std::vector<transport::Message> kept;
  std::vector<std::pair<std::int32_t, std::vector<std::byte>>> headers;  // of all that was sent
  transport::EndpointStats figures;
  std::vector<std::function<void()>> tasks;
  std::array<bool, kRanks> gone{};
  bool closed = false;
  std::function<void()> before_send;  // once, in the next send(): what another thread does then

 private:
  const std::string address_ = "fake";
};

}  // namespace weft::collectives
