// Connections that break under two endpoints that live: real sockets, through a proxy that cuts
// them anywhere. Nothing may be lost, come twice or out of order, and nobody be declared lost.
#include <fcntl.h>

#include <condition_variable>
#include <cstdlib>
#include <thread>

#include "tests/transport/between.h"
#include "tests/transport/payload.h"
#include "tests/transport/raw_client.h"
#include "tests/transport/recorder.h"
#include "transport/base/os/secure_random.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

// So many, or as many as WEFT_TEST_CASES says.
std::uint64_t callsOr(std::uint64_t usual) {
  const char* wanted = std::getenv("WEFT_TEST_CASES");  // NOLINT(concurrency-mt-unsafe)
  return wanted == nullptr ? usual : std::stoull(wanted);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const std::uint64_t kCalls = callsOr(2'000);
constexpr std::uint64_t kDamageEvery = 4;  // MiB, on average
constexpr bool kIsLong = false;
#else
const std::uint64_t kCalls = callsOr(20'000);
constexpr std::uint64_t kDamageEvery = 12;
constexpr bool kIsLong = true;  // whatever may happen happens
#endif
constexpr std::size_t kMiB = std::size_t{1} << 20;

class Reconnect : public ::testing::TestWithParam<Via> {};
INSTANTIATE_TEST_SUITE_P(Each, Reconnect, ::testing::Values(Via::kUnix, Via::kTcp, Via::kTls),
                         viaName);

// --- calls: the server counts how often each was executed ---

std::uint64_t idOf(const std::string& header) {
  std::uint64_t id = 0;
  std::memcpy(&id, header.data(), sizeof(id));
  return id;
}

Message call(std::uint64_t id, std::size_t size) {
  Message message;
  message.header.resize(16);
  message.buffers.push_back(randomBuffer(size, static_cast<unsigned>(id)));
  const std::uint64_t sum = checksum(message.buffers[0]);
  std::memcpy(message.header.data(), &id, 8);
  std::memcpy(message.header.data() + 8, &sum, 8);
  return message;
}

bool isWhole(const Recorder::Received& received) {
  std::uint64_t sum = 0;
  std::memcpy(&sum, received.header.data() + 8, 8);
  return received.buffers.size() == 1 && checksum(received.buffers[0]) == sum;
}

std::size_t sizeOfCall(std::uint64_t dice) {
  const std::uint64_t kind = dice % 1000;
  const std::size_t bound = kind < 900 ? 2000 : kind < 980 ? 200'000 : kind < 998 ? kMiB : 8 * kMiB;
  return kind < 50 ? 0 : (dice >> 10) % (bound + 1);
}

// The calls of a client that are answered; it has no more than so many under way.
class Ledger {
 public:
  explicit Ledger(std::uint64_t calls) : answered_(calls), executed_(calls) {}
  void execute(std::uint64_t id) { ++executed_[id]; }
  void answer(std::uint64_t id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++answered_[id];
    ++count_;
    changed_.notify_all();
  }
  bool waitFor(std::uint64_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, 2 * kPatience, [&] { return count_ >= count; });
  }
  void expectEachOnce() {
    for (std::uint64_t id = 0; id < answered_.size(); ++id) {
      ASSERT_EQ(executed_[id], 1) << "call " << id;
      ASSERT_EQ(answered_[id], 1) << "call " << id;
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t count_ = 0;
  std::vector<int> answered_;
  std::vector<std::atomic<int>> executed_;
};

// Calls from four threads through proxies that do harm to them, as `harm` says.
void expectEveryCallOnce(Via via, const std::function<void(Between&, unsigned)>& harm,
                         const std::function<void(Between&)>& atTimes = {},
                         std::uint64_t* damaged = nullptr,
                         const std::function<void(EndpointOptions&)>& adjust = {}) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kUnderWay = 48;
  Ledger ledger(kCalls);
  std::atomic<int> wrong{0};
  Between between(via, adjust, [&](Between& self) {
    self.first.keep = self.second.keep = false;
    self.second.react = [&](const Recorder::Received& received) {
      if (!isWhole(received)) ++wrong;
      ledger.execute(idOf(received.header));
      expectOk(self.b->send(0, {bytesOf(received.header), received.buffers}));
    };
    self.first.react = [&](const Recorder::Received& received) {
      if (!isWhole(received)) ++wrong;
      ledger.answer(idOf(received.header));
    };
  });
  harm(between, seed);
  std::atomic<std::uint64_t> next{0};
  std::vector<std::thread> clients;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (std::uint64_t id = next++; id < kCalls; id = next++) {
        if (id > kUnderWay && !ledger.waitFor(id - kUnderWay)) return;
        expectOk(between.a->send(1, call(id, sizeOfCall(random())), kPatience));
        if (atTimes && id % 250 == 125) atTimes(between);
      }
    });
  }
  for (std::thread& client : clients)
    client.join();
  EXPECT_TRUE(ledger.waitFor(kCalls));
  ledger.expectEachOnce();
  EXPECT_EQ(wrong, 0);
  between.expectNobodyLost();
  if (damaged != nullptr) *damaged = between.to_a->corrupted() + between.to_b->corrupted();
  const PeerStats stats = statsOf(*between.a);
  std::printf(
      "%llu calls, %llu connections made again, %llu MiB sent, %llu of them in shared memory, %llu "
      "over second connections\n",
      static_cast<unsigned long long>(kCalls), static_cast<unsigned long long>(stats.reconnects),
      static_cast<unsigned long long>(stats.bytes_sent >> 20),
      static_cast<unsigned long long>(stats.arena_bytes_sent >> 20),
      static_cast<unsigned long long>(stats.bulk_bytes_sent >> 20));
  const bool takes_bulk = stats.bulk_bytes_sent > kMiB;
  EXPECT_TRUE(takes_bulk == overTcp(via) || (!takes_bulk && !kIsLong));
  EXPECT_GT(stats.reconnects, kCalls / 1000);
  EXPECT_EQ(stats.messages_sent, kCalls);
  EXPECT_EQ(statsOf(*between.b).messages_received, kCalls);
}

TEST_P(Reconnect, EveryCallIsExecutedOnceAndAnsweredRightWhileConnectionsBreak) {
  const auto harm = [](Between& between, unsigned seed) {
    between.to_a->breakWithin(24 * kMiB, seed);
    between.to_b->breakWithin(24 * kMiB, seed + 1);
  };
  // Some breaks find the connection idle. On one host most bytes lie in shared memory and do not
  // pass the proxy; these breaks are then most there are.
  expectEveryCallOnce(GetParam(), harm, [](Between& between) { between.breakAll(); });
}

class Damage : public ::testing::TestWithParam<Via> {};
INSTANTIATE_TEST_SUITE_P(Each, Damage, ::testing::Values(Via::kTcp, Via::kTls), viaName);

TEST_P(Damage, EveryCallIsExecutedOnceAndAnsweredRightWhateverHappensToItsBytes) {
  std::uint64_t damaged = 0;
  // Who waits for bytes that were lost needs another connection soon.
  const auto impatient = [](EndpointOptions& options) {
    options.heartbeat_interval = std::chrono::milliseconds(200);
    options.peer_timeout = std::chrono::seconds(4);
  };
  expectEveryCallOnce(
      GetParam(),
      [](Between& between, unsigned seed) {
        between.to_a->corrupt(kDamageEvery * kMiB, seed);
        between.to_b->corrupt(kDamageEvery * kMiB, seed + 1);
      },
      {}, &damaged, impatient);
  EXPECT_GT(damaged, kCalls / 1000);
}

TEST_P(Reconnect, OneWayTrafficBothWaysKeepsItsOrderAndItsBounds) {
  const std::uint64_t each = kCalls / 4;
  std::atomic<std::uint64_t> wrong{0};
  std::array<std::uint64_t, 2> last{};  // each its own loop thread's
  Between between(
      GetParam(), [](EndpointOptions& options) { options.limits.max_queued_bytes = 1 << 20; },
      [&](Between& self) {
        self.first.keep = self.second.keep = false;
        const auto check = [&](std::uint64_t& before) {
          return [&](const Recorder::Received& received) {
            if (idOf(received.header) != before++ || !isWhole(received)) ++wrong;
          };
        };
        self.first.react = check(last[0]);
        self.second.react = check(last[1]);
      });
  between.to_a->breakWithin(2 * kMiB, 1);
  between.to_b->breakWithin(2 * kMiB, 2);
  const auto flood = [&](Endpoint& from, std::int32_t to) {
    for (std::uint64_t id = 0; id < each; ++id) {
      expectOk(from.send(to, call(id, id % 100 == 0 ? 300'000 : id % 700), kPatience));
      EXPECT_LE(statsOf(from).queued_bytes, std::size_t{2} << 20);
    }
  };
  std::thread there([&] { flood(*between.b, 0); });
  flood(*between.a, 1);
  there.join();
  EXPECT_TRUE(between.first.waitForMessages(each));
  EXPECT_TRUE(between.second.waitForMessages(each));
  EXPECT_EQ(wrong, 0U);
  between.expectNobodyLost();
  EXPECT_GT(statsOf(*between.a).reconnects, 0U);
  // Nothing is kept for longer than its ack takes.
  EXPECT_TRUE(eventually([&] {
    return statsOf(*between.a).queued_bytes == 0 && statsOf(*between.b).queued_bytes == 0;
  }));
}

TEST_P(Reconnect, AHalfOpenConnectionIsReplaced) {
  Between between(GetParam(), [](EndpointOptions& options) {
    options.heartbeat_interval = milliseconds(20);
    options.peer_timeout = milliseconds(6000);
  });
  expectOk(between.a->send(1, textMessage("one")));
  ASSERT_TRUE(between.second.waitForMessages(1));
  between.to_a->swallow();
  between.to_b->swallow();
  expectOk(between.a->send(1, textMessage("two")));
  expectOk(between.b->send(0, textMessage("back")));
  ASSERT_TRUE(between.second.waitForMessages(2));
  ASSERT_TRUE(between.first.waitForMessages(1));
  EXPECT_EQ(between.second.messages()[1].header, "two");
  between.expectNobodyLost();
  EXPECT_GE(statsOf(*between.a).reconnects, 1U);
}

TEST_P(Reconnect, APeerThatCannotBeReachedIsLostOnceAndForBoth) {
  Between between(GetParam(), [](EndpointOptions& options) {
    options.heartbeat_interval = milliseconds(20);
    options.peer_timeout = milliseconds(1500);
  });
  expectOk(between.a->send(1, textMessage("one")));
  ASSERT_TRUE(between.second.waitForMessages(1));
  ASSERT_TRUE(eventually([&] { return statsOf(*between.a).queued_bytes == 0; }));  // acknowledged
  between.swallowAll(true);
  expectOk(between.a->send(1, textMessage("two")));
  ASSERT_TRUE(between.first.waitForLosses(1));
  EXPECT_EQ(between.first.losses()[0].reason.code(), ErrorCode::kPeerLost);
  ASSERT_EQ(between.first.failed().size(), 1U);
  EXPECT_EQ(between.first.failed()[0].first, "two");
  // What comes back too late meets the end of the session.
  between.swallowAll(false);
  ASSERT_TRUE(between.second.waitForLosses(1));
  EXPECT_EQ(between.a->send(1, textMessage("late")).code(), ErrorCode::kPeerLost);
  between.a->close();
  between.b->close();
  EXPECT_EQ(between.first.losses().size(), 1U);
  EXPECT_EQ(between.second.losses().size(), 1U);
  EXPECT_EQ(between.second.messageCount(), 1U);
}

TEST_P(Reconnect, OneThatGaveUpTellsTheOtherWhoDials) {
  // Only one side watches for silence: the other learns it when it dials.
  Between between(GetParam(), [](EndpointOptions& options) {
    if (options.rank == 0) options.peer_timeout = milliseconds(1500);
    options.heartbeat_interval = milliseconds(50);
  });
  expectOk(between.a->send(1, textMessage("one")));
  ASSERT_TRUE(between.second.waitForMessages(1));
  between.swallowAll(true);
  ASSERT_TRUE(between.first.waitForLosses(1));
  between.to_a->swallowAll(false);
  between.breakAll();
  ASSERT_TRUE(between.second.waitForLosses(1));
  EXPECT_NE(between.second.losses()[0].reason.text().find("declared this worker lost"),
            std::string::npos)
      << between.second.losses()[0].reason.text();
}

TEST_P(Reconnect, WithoutTimeForItABrokenConnectionIsALostPeer) {
  Between between(GetParam(),
                  [](EndpointOptions& options) { options.reconnect_timeout = milliseconds(0); });
  expectOk(between.a->send(1, textMessage("one")));
  ASSERT_TRUE(between.second.waitForMessages(1));
  between.breakAll();
  ASSERT_TRUE(between.first.waitForLosses(1));
  ASSERT_TRUE(between.second.waitForLosses(1));
}

TEST_P(Reconnect, WhenNobodyListensAnyMoreThePeerIsLostAtOnce) {
  // The timeouts are far beyond this test's patience.
  Between between(GetParam(), [](EndpointOptions& options) {
    options.reconnect_timeout = std::chrono::hours(1);
  });
  expectOk(between.a->send(1, textMessage("one")));
  ASSERT_TRUE(between.second.waitForMessages(1));
  between.to_b->refuse();
  between.to_a->refuse();
  between.breakAll();
  ASSERT_TRUE(between.first.waitForLosses(1));
  ASSERT_TRUE(between.second.waitForLosses(1));
  EXPECT_NE(between.first.losses()[0].reason.text().find("nothing listens at"), std::string::npos)
      << between.first.losses()[0].reason.text();
}

TEST_P(Reconnect, StrangersDoNotKeepABrokenConnectionFromBeingMadeAgain) {
  Between between(GetParam(), [](EndpointOptions& options) {
    options.handshake_timeout = std::chrono::hours(1);  // their slots do not become free by waiting
  });
  constexpr std::size_t kStrangers = 80;
  std::atomic<bool> enough{false};
  std::atomic<std::size_t> renewed{0};
  // Every other one says that it is the peer. From elsewhere: all of this user's are trusted.
  const auto stranger = [&](const Endpoint& to, std::int32_t rank) {
    if (!overTcp(GetParam()) || renewed % 2 == 0) return std::make_unique<RawClient>(to);
    auto made = std::make_unique<RawClient>(to, "127.0.0.2");
    Nonce nonce{};
    EXPECT_FALSE(fillRandom(nonce));
    const Identity self = identityOf(optionsFor(rank));
    made->send(
        Handshake::dialler(self, 1 - rank, "worker" + std::to_string(1 - rank), nonce, {1, 0, 0, 1})
            .output());
    return made;
  };
  std::thread crowd([&] {
    std::vector<std::unique_ptr<RawClient>> at_a(kStrangers);
    std::vector<std::unique_ptr<RawClient>> at_b(kStrangers);
    for (; !enough; ++renewed) {
      at_a[renewed % kStrangers] = stranger(*between.a, 1);
      at_b[renewed % kStrangers] = stranger(*between.b, 0);
      takes(std::chrono::microseconds(200));
    }
  });
  EXPECT_TRUE(eventually([&] { return renewed > kStrangers; }));
  constexpr std::size_t kCuts = 20;
  for (std::size_t cut = 1; cut <= kCuts; ++cut) {
    expectOk(between.a->send(1, textMessage("there")));
    expectOk(between.b->send(0, textMessage("back")));
    EXPECT_TRUE(between.second.waitForMessages(cut));
    EXPECT_TRUE(between.first.waitForMessages(cut));
    between.breakAll();
  }
  enough = true;
  crowd.join();
  between.expectNobodyLost();
  EXPECT_GE(statsOf(*between.a).reconnects, kCuts - 1);
  EXPECT_GT(between.a->stats().refusedBy(RefusalCause::kOverload) +
                between.b->stats().refusedBy(RefusalCause::kOverload),
            kStrangers);
}

// Blocks that were placed for a Unix socket go with their bytes when only TCP is left.
TEST(ReconnectArena, FramesInSharedMemoryFollowToTcp) {
  Recorder first;
  Recorder second;
  EndpointOptions options0 = optionsFor(0, Via::kBoth);
  EndpointOptions options1 = optionsFor(1, Via::kBoth);
  options0.peer_timeout = options1.peer_timeout = std::chrono::hours(1);
  const auto a = openEndpoint(options0, first);
  const auto b = openEndpoint(options1, second);
  Proxy fast(b->address());
  Proxy slow(b->address(), /*tcp=*/true);
  Address both = fast.parts();
  both.tcp_host = slow.parts().tcp_host;
  both.tcp_port = slow.parts().tcp_port;
  expectOk(a->addPeer({1, "worker1", formatAddress(both)}));
  expectOk(b->addPeer({0, "worker0", "weft1;unix=x;host=another"}));  // cannot dial
  std::uint64_t id = 0;
  EXPECT_TRUE(eventually([&] {
    expectOk(a->send(1, call(id++, 100'000)));
    return statsOf(*a).arena_bytes_sent > 0;
  }));
  ASSERT_TRUE(second.waitForMessages(id));
  EXPECT_EQ(statsOf(*a).transport, "unix");
  fast.swallow();  // what is placed now is never announced
  for (int i = 0; i < 5; ++i)
    expectOk(a->send(1, call(id++, 1'000'000)));
  const std::uint64_t in_arena = statsOf(*a).arena_bytes_sent;
  fast.refuse();
  fast.breakAll();
  for (int i = 0; i < 5; ++i)
    expectOk(a->send(1, call(id++, 1'000'000)));
  ASSERT_TRUE(second.waitForMessages(id));
  EXPECT_EQ(statsOf(*a).transport, "tcp");
  EXPECT_GE(in_arena, 5'000'000U);
  const auto messages = second.messages();
  for (std::uint64_t i = 0; i < id; ++i) {
    EXPECT_EQ(idOf(messages[i].header), i);
    EXPECT_TRUE(isWhole(messages[i])) << i;
  }
  EXPECT_TRUE(first.losses().empty() && second.losses().empty());
  a->close();
  b->close();
}

}  // namespace
}  // namespace weft::transport
