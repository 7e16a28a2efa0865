// What the transport's tests share: a handler that records, endpoints with short names, and
// waits that end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "transport/base/log.h"
#include "transport/endpoint.h"

#include "tests/support/waiting.h"

namespace weft::transport {

// No test should come near it: it only keeps a broken one from hanging.
constexpr std::chrono::seconds kPatience{40};

inline std::vector<std::byte> bytesOf(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

inline std::string textOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline OwnedBuffer newBuffer(std::size_t size) {
  std::shared_ptr<std::byte[]> memory(new std::byte[size]);
  return {memory.get(), size, memory};
}

// What a handler does in onHeader(): memory for what is still on the wire.
inline void fillBuffers(std::span<const std::uint64_t> sizes, std::vector<OwnedBuffer>& buffers) {
  ASSERT_EQ(buffers.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (buffers[i].owner == nullptr) buffers[i] = newBuffer(sizes[i]);
  }
}

inline Message textMessage(const std::string& text) { return {bytesOf(text), {}}; }

inline const AuthKey& testKey() {
  static const AuthKey key = AuthKey::fromHex(std::string(64, 'a')).value();
  return key;
}

class Recorder : public EndpointHandler {
 public:
  struct Received {
    std::int32_t from = -1;
    std::string header;
    std::vector<OwnedBuffer> buffers;
  };

  // Set before the endpoint is made; run on the loop thread.
  std::function<Disposition(std::int32_t, std::span<const std::byte>,
                            std::span<const std::uint64_t>)>
      decide;
  std::function<void(const Received&)> react;
  std::function<std::shared_ptr<Arrivals>()> listen;
  std::function<void(const PeerLoss&)> react_to_loss;
  std::function<void()> react_to_send_failure;
  std::function<void()> react_to_news;  // a peer joined or returned, this one is displaced
  std::function<void()> react_to_too_large;
  bool keep = true;  // false: count messages only

  Disposition onHeader(std::int32_t from, std::span<const std::byte> header,
                       std::span<const std::uint64_t> sizes,
                       std::vector<OwnedBuffer>& buffers) override {
    if (decide) {
      const Disposition disposition = decide(from, header, sizes);
      if (disposition != Disposition::kAccept) return disposition;
    }
    fillBuffers(sizes, buffers);
    return Disposition::kAccept;
  }

  std::shared_ptr<Arrivals> arrivals(std::int32_t) override { return listen ? listen() : nullptr; }

  void onMessage(std::int32_t from, std::span<const std::byte> header,
                 std::vector<OwnedBuffer> buffers) override {
    Received received{from, textOf(header), std::move(buffers)};
    if (react) react(received);
    update([&] {
      ++count_;
      if (keep) messages_.push_back(std::move(received));
    });
  }

  void onPeerLost(const PeerLoss& loss) override {
    if (react_to_loss) react_to_loss(loss);
    update([&] { losses_.push_back(loss); });
  }

  void onPeerJoined(const PeerInfo& peer) override {
    update([&] { joined_.push_back(peer); });
    if (react_to_news) react_to_news();
  }

  void onTooLarge(std::int32_t, std::span<const std::byte> header, const Error& why) override {
    update([&] { too_large_.emplace_back(textOf(header), why); });
    if (react_to_too_large) react_to_too_large();
  }

  void onPeerReturned(const PeerInfo& peer) override {
    update([&] { returned_.push_back(peer); });
    if (react_to_news) react_to_news();
  }

  void onDisplaced(const PeerLoss& loss) override {
    update([&] { displaced_.push_back(loss); });
    if (react_to_news) react_to_news();
  }

  void onSendFailed(std::int32_t, std::span<const std::byte> header, const Error& reason) override {
    update([&] { failed_.emplace_back(textOf(header), reason); });
    if (react_to_send_failure) react_to_send_failure();
  }

  bool waitForMessages(std::size_t count) {
    return wait([&] { return count_ >= count; });
  }
  bool waitForLosses(std::size_t count) {
    return wait([&] { return losses_.size() >= count; });
  }
  bool waitForJoined(std::size_t count) {
    return wait([&] { return joined_.size() >= count; });
  }
  bool waitForReturned(std::size_t count) {
    return wait([&] { return returned_.size() >= count; });
  }
  bool waitForDisplaced(std::size_t count) {
    return wait([&] { return displaced_.size() >= count; });
  }
  bool waitForFailed(std::size_t count) {
    return wait([&] { return failed_.size() >= count; });
  }

  std::vector<Received> messages() { return copy(messages_); }
  std::vector<PeerLoss> losses() { return copy(losses_); }
  std::vector<PeerInfo> joined() { return copy(joined_); }
  std::vector<std::pair<std::string, Error>> tooLarge() { return copy(too_large_); }
  std::vector<PeerInfo> returned() { return copy(returned_); }
  std::vector<PeerLoss> displaced() { return copy(displaced_); }
  std::vector<std::pair<std::string, Error>> failed() { return copy(failed_); }
  std::size_t messageCount() { return copy(count_); }

 private:
  template <typename Change>
  void update(Change change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <typename Predicate>
  bool wait(Predicate predicate) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, predicate);
  }
  template <typename T>
  T copy(const T& value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return value;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
  std::vector<Received> messages_;
  std::vector<PeerLoss> losses_;
  std::vector<PeerInfo> joined_;
  std::vector<PeerInfo> returned_;
  std::vector<PeerLoss> displaced_;
  std::vector<std::pair<std::string, Error>> too_large_;
  std::vector<std::pair<std::string, Error>> failed_;
};

enum class Via { kUnix, kTcp, kTls, kBoth };

inline bool overTcp(Via via) { return via == Via::kTcp || via == Via::kTls; }

inline std::string viaName(const ::testing::TestParamInfo<Via>& via) {
  if (via.param == Via::kTls) return "Tls";
  return via.param == Via::kTcp ? "Tcp" : "Unix";
}

inline EndpointOptions optionsFor(std::int32_t rank, Via via = Via::kUnix) {
  EndpointOptions options;
  options.group_id = "test group";
  options.name = "worker" + std::to_string(rank);
  options.rank = rank;
  options.key = testKey();
  options.listen_address = "127.0.0.1";
  options.unix_socket = !overTcp(via);
  if (via == Via::kTls) options.encryption = Encryption::kOn;
  options.tcp = via != Via::kUnix;
  return options;
}

inline std::unique_ptr<Endpoint> openEndpoint(EndpointOptions options, EndpointHandler& handler) {
  Result<std::unique_ptr<Endpoint>> made = Endpoint::create(std::move(options), handler);
  if (!made.ok()) {
    ADD_FAILURE() << made.error().text();
    return nullptr;
  }
  return std::move(made).value();
}

inline PeerInfo infoOf(std::int32_t rank, const Endpoint& endpoint) {
  return {rank, "worker" + std::to_string(rank), endpoint.address()};
}

inline void expectOk(const Error& error) { EXPECT_FALSE(error) << error.text(); }

// Of the only peer.
inline PeerStats statsOf(const Endpoint& endpoint) { return endpoint.stats().peers.at(0); }

// Two endpoints that know each other.
struct Pair {
  explicit Pair(Via via = Via::kUnix, const std::function<void(EndpointOptions&)>& adjust = {},
                const std::function<void(Recorder&, Recorder&)>& prepare = {}) {
    if (prepare) prepare(first, second);
    EndpointOptions options0 = optionsFor(0, via);
    EndpointOptions options1 = optionsFor(1, via);
    if (adjust) {
      adjust(options0);
      adjust(options1);
    }
    a = openEndpoint(options0, first);
    b = openEndpoint(options1, second);
    expectOk(a->addPeer(infoOf(1, *b)));
    expectOk(b->addPeer(infoOf(0, *a)));
  }

  Recorder first;
  Recorder second;
  std::unique_ptr<Endpoint> a;  // rank 0
  std::unique_ptr<Endpoint> b;  // rank 1
};

// What the process logs as errors while this lives.
class LoggedErrors {
 public:
  LoggedErrors() {
    clear();
    setLogSink([](LogLevel level, const std::string& text) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (level == LogLevel::kError) text_ += text + "\n";
    });
  }
  ~LoggedErrors() { setLogSink(nullptr); }
  std::string text() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }

 private:
  static void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_.clear();
  }
  static inline std::mutex mutex_;
  static inline std::string text_;
};

// Polls a condition that no handler tells of (counters). Bounded.
template <typename Predicate>
bool eventually(Predicate predicate) {
  return waitUntil(predicate, kPatience, std::chrono::milliseconds(2));
}

// Sends large buffers until one has gone through shared memory. Returns how many it sent.
inline std::size_t warmUp(Endpoint& endpoint, std::int32_t to) {
  std::size_t sent = 0;
  EXPECT_TRUE(eventually([&] {
    expectOk(endpoint.send(to, {bytesOf("warm"), {newBuffer(100'000)}}));
    ++sent;
    return statsOf(endpoint).arena_bytes_sent > 0;
  }));
  return sent;
}

}  // namespace weft::transport
