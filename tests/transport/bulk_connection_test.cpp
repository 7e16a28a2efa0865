// Large messages over two connections: real sockets, whole and broken ones.
#include <atomic>
#include <future>
#include <thread>

#include "tests/transport/between.h"
#include "tests/transport/late_bytes.h"
#include "tests/transport/payload.h"
#include "tests/transport/proxy.h"
#include "tests/transport/raw_client.h"
#include "tests/transport/recorder.h"
#include "transport/base/bytes.h"
#include "transport/frame/frame.h"

#include "tests/support/waiting.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kThreshold = std::size_t{64} << 10;

void withBulkConnection(EndpointOptions& options) { options.bulk.threshold = kThreshold; }

// Its header is the checksum of its buffers.
Message sealed(std::vector<OwnedBuffer> buffers) {
  Message message;
  message.header.resize(8);
  std::uint64_t sum = 0;
  for (const OwnedBuffer& buffer : buffers)
    sum = sum * 31 + checksum(buffer);
  storeLittle<std::uint64_t>(message.header.data(), sum);
  message.buffers = std::move(buffers);
  return message;
}

bool isWhole(const Recorder::Received& received) {
  std::uint64_t sum = 0;
  for (const OwnedBuffer& buffer : received.buffers)
    sum = sum * 31 + checksum(buffer);
  return received.header.size() == 8 &&
         loadLittle<std::uint64_t>(reinterpret_cast<const std::byte*>(received.header.data())) ==
             sum;
}

void expectAllWhole(Recorder& recorder, std::size_t count) {
  ASSERT_TRUE(recorder.waitForMessages(count));
  for (const Recorder::Received& received : recorder.messages())
    EXPECT_TRUE(isWhole(received));
}

// Sends until one has gone over two connections, never with a long queue, behind which the second
// one's making would wait. Returns how many it sent.
std::size_t untilBulkConnection(Endpoint& from, std::int32_t to) {
  std::size_t sent = 0;
  const std::uint64_t before = statsOf(from).bulk_bytes_sent;
  EXPECT_TRUE(eventually([&] {
    if (statsOf(from).queued_bytes < 4 * kMiB)
      expectOk(from.send(to, sealed({randomBuffer(kMiB, static_cast<unsigned>(++sent))})));
    return statsOf(from).bulk_bytes_sent > before;
  }));
  return sent;
}

class SlowNetwork : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Bulk, SlowNetwork, ::testing::Values(false, true));

// A record of a megabyte takes longer than a peer may be silent.
TEST_P(SlowNetwork, ALargeMessageThatComesSlowlyIsNoSilence) {
  Between between(Via::kTcp, [](EndpointOptions& options) {
    options.heartbeat_interval = milliseconds(50);
    options.peer_timeout = options.reconnect_timeout = milliseconds(400);
    options.bulk.enabled = GetParam();
    options.bulk.threshold = kThreshold;
  });
  expectOk(between.a->send(1, textMessage("connect")));
  const std::size_t sent = 1 + (GetParam() ? untilBulkConnection(*between.a, 1) : 0);
  ASSERT_TRUE(between.second.waitForMessages(sent));
  for (Proxy* way : {between.to_a.get(), between.to_b.get()})
    way->slowDown(kMiB);
  expectOk(between.a->send(1, sealed({randomBuffer(2 * kMiB, 7)})));
  ASSERT_TRUE(between.second.waitForMessages(sent + 1));
  EXPECT_TRUE(isWhole(between.second.messages().back()));
  EXPECT_EQ(statsOf(*between.a).reconnects, 0U);
  between.expectNobodyLost();
}

TEST(BulkConnection, LargeMessagesUseItBothWaysAndKeepTheirOrder) {
  std::atomic<int> wrong{0};
  Pair pair(Via::kTcp, withBulkConnection, [&](Recorder& first, Recorder& second) {
    for (Recorder* each : {&first, &second}) {
      each->keep = false;
      each->react = [&wrong, next = std::uint64_t{0}](const Recorder::Received& got) mutable {
        if (got.buffers.size() == 1) return;  // of untilBulkConnection()
        std::uint64_t number = 0;
        std::memcpy(&number, got.buffers.at(0).data, 8);
        if (number != next++ ||
            checksum(got.buffers.at(1)) !=
                checksum(randomBuffer(got.buffers.at(1).size, static_cast<unsigned>(number)))) {
          ++wrong;
        }
      };
    }
  });
  constexpr std::uint64_t kEach = 300;
  const auto flood = [](Endpoint& from, std::int32_t to) {
    for (std::uint64_t i = 0; i < kEach; ++i) {
      OwnedBuffer number = newBuffer(8);
      std::memcpy(number.data, &i, 8);
      const std::size_t size = i % 3 == 0 ? 100 : 3 * kThreshold + i * 977;
      expectOk(from.send(to, {{}, {number, randomBuffer(size, static_cast<unsigned>(i))}}));
    }
  };
  const std::size_t more = untilBulkConnection(*pair.a, 1);
  const std::size_t more_back = untilBulkConnection(*pair.b, 0);
  std::thread there([&] { flood(*pair.b, 0); });
  flood(*pair.a, 1);
  there.join();
  EXPECT_TRUE(pair.first.waitForMessages(more_back + kEach));
  EXPECT_TRUE(pair.second.waitForMessages(more + kEach));
  EXPECT_EQ(wrong, 0);
  for (Endpoint* each : {pair.a.get(), pair.b.get()}) {
    const PeerStats stats = statsOf(*each);
    EXPECT_GT(stats.bulk_bytes_sent, 10 * kMiB);
    EXPECT_LT(stats.bulk_bytes_sent, stats.bytes_sent / 2);
    EXPECT_EQ(stats.reconnects, 0U);
  }
  // Both sides count the same, and nothing is kept when it was acknowledged.
  EXPECT_TRUE(
      eventually([&] { return statsOf(*pair.a).bytes_sent == statsOf(*pair.b).bytes_received; }));
  EXPECT_TRUE(eventually(
      [&] { return statsOf(*pair.a).queued_bytes == 0 && statsOf(*pair.b).queued_bytes == 0; }));
}

TEST(BulkConnection, TheCutMayGoThroughAnyBuffer) {
  Pair pair(Via::kTcp, withBulkConnection);
  std::size_t sent = untilBulkConnection(*pair.a, 1);
  const std::uint64_t before = statsOf(*pair.a).bulk_bytes_sent;
  const std::vector<std::vector<std::size_t>> shapes = {
      {kMiB + 13},
      {0, kMiB, 0, 0},
      {5, 0, 100'000, 0, 7, 100'000, 0},
      std::vector<std::size_t>(300, 4000),
      std::vector<std::size_t>(150, 8192),
      {kMiB, 1},
      {1, kMiB},
      {12 * kMiB, 0, 3, 5 * kMiB},
  };
  for (const std::vector<std::size_t>& shape : shapes) {
    std::vector<OwnedBuffer> buffers;
    for (const std::size_t size : shape)
      buffers.push_back(randomBuffer(size, static_cast<unsigned>(buffers.size())));
    expectOk(pair.a->send(1, sealed(std::move(buffers))));
    expectOk(pair.a->send(1, sealed({})));
    sent += 2;
  }
  expectAllWhole(pair.second, sent);
  EXPECT_GT(statsOf(*pair.a).bulk_bytes_sent, before + 8 * kMiB);
}

// Both connections get the bytes as they come.
TEST(BulkConnection, BytesThatComeWhileTheyAreSent) {
  for (const Via via : {Via::kTcp, Via::kUnix}) {
    Pair pair(via, withBulkConnection);
    std::size_t sent = 0;
    if (via == Via::kTcp) sent = untilBulkConnection(*pair.a, 1);
    const std::uint64_t before = statsOf(*pair.a).bulk_bytes_sent;
    for (const std::size_t step : {1000U, 100'000U, 5'000'000U}) {
      for (const std::vector<std::size_t>& shape :
           {std::vector<std::size_t>{3 * kMiB + 7, 0, 1}, {1, kMiB, 70'000, 5}}) {
        std::vector<OwnedBuffer> content;
        for (const std::size_t size : shape)
          content.push_back(randomBuffer(size, static_cast<unsigned>(content.size() + step)));
        const auto late = std::make_shared<LateBytes>(content, step);
        Message message = sealed(content);
        message.buffers = late->buffers();
        message.filling = late;
        expectOk(pair.a->send(1, std::move(message)));
        EXPECT_EQ(late->filled(), Filling::kAll);
        expectOk(pair.a->send(1, sealed({randomBuffer(kMiB, 3)})));
        sent += 2;
      }
    }
    expectAllWhole(pair.second, sent);
    if (via == Via::kTcp) {
      EXPECT_GT(statsOf(*pair.a).bulk_bytes_sent, before + 8 * kMiB);
    }
  }
}

struct Counted : Arrivals {
  void onBytes(const std::byte*, std::size_t size) noexcept override { bytes += size; }
  std::atomic<std::uint64_t> bytes{0};
};

TEST(BulkConnection, WhoListensIsToldOfAllBytesBeforeTheMessageComes) {
  std::shared_ptr<Counted> counted;  // of the message that comes; the loop thread's
  std::atomic<int> wrong{0};
  Pair pair(Via::kTcp, withBulkConnection, [&](Recorder&, Recorder& second) {
    second.listen = [&] { return counted = std::make_shared<Counted>(); };
    second.react = [&](const Recorder::Received& got) {
      std::uint64_t bytes = 0;
      for (const OwnedBuffer& buffer : got.buffers)
        bytes += buffer.size;
      if (counted->bytes != bytes || counted.use_count() != 1) ++wrong;
    };
  });
  std::size_t sent = untilBulkConnection(*pair.a, 1);
  for (unsigned i = 0; i < 30; ++i, ++sent) {
    const std::size_t size = kThreshold * (i % 5) + i * 977;
    expectOk(pair.a->send(1, sealed({randomBuffer(size, i), randomBuffer(100, i)})));
  }
  expectAllWhole(pair.second, sent);
  EXPECT_EQ(wrong, 0);
}

TEST(BulkConnection, TheReceiverMakesItWhenItIsTheOneThatDialled) {
  Pair pair(Via::kTcp, withBulkConnection);
  expectOk(pair.a->send(1, sealed({})));  // a dials
  ASSERT_TRUE(pair.second.waitForMessages(1));
  expectAllWhole(pair.first, untilBulkConnection(*pair.b, 0));
}

TEST(BulkConnection, NeitherSideNeedsToWantIt) {
  for (const std::int32_t without : {0, 1}) {
    Pair pair(Via::kTcp, [&](EndpointOptions& options) {
      withBulkConnection(options);
      options.bulk.enabled = options.rank != without;
    });
    for (unsigned i = 0; i < 20; ++i) {
      expectOk(pair.a->send(1, sealed({randomBuffer(kMiB, i)})));
      expectOk(pair.b->send(0, sealed({randomBuffer(kMiB, i)})));
    }
    expectAllWhole(pair.second, 20);
    expectAllWhole(pair.first, 20);
    EXPECT_EQ(statsOf(*pair.a).bulk_bytes_sent + statsOf(*pair.b).bulk_bytes_sent, 0U);
    EXPECT_EQ(statsOf(*pair.a).reconnects, 0U);
  }
}

TEST(BulkConnection, OneThatIsNotNamedYetMakesItLater) {
  Recorder first;
  Recorder second;
  EndpointOptions options0 = optionsFor(0, Via::kTcp);
  EndpointOptions options1 = optionsFor(1, Via::kTcp);
  withBulkConnection(options0);
  withBulkConnection(options1);
  const auto a = openEndpoint(options0, first);
  const auto b = openEndpoint(options1, second);
  expectOk(a->addPeer(infoOf(1, *b)));
  std::size_t sent = 0;
  for (; sent < 3; ++sent)
    expectOk(a->send(1, sealed({randomBuffer(kMiB, static_cast<unsigned>(sent))})));
  timeForWhatMustNotHappen(milliseconds(50));  // its first attempts are refused
  EXPECT_EQ(second.messageCount(), 0U);
  expectOk(b->addPeer(infoOf(0, *a)));
  ASSERT_TRUE(second.waitForMessages(sent));
  sent += untilBulkConnection(*a, 1);
  expectAllWhole(second, sent);
}

TEST(BulkConnection, UnixSocketsHaveNone) {
  Pair pair(Via::kBoth, [](EndpointOptions& options) {
    withBulkConnection(options);
    options.arena.enabled = false;
  });
  for (unsigned i = 0; i < 20; ++i)
    expectOk(pair.a->send(1, sealed({randomBuffer(kMiB, i)})));
  expectAllWhole(pair.second, 20);
  EXPECT_EQ(statsOf(*pair.a).bulk_bytes_sent, 0U);
}

TEST(BulkConnection, DiscardedMessagesAreReadPast) {
  Pair pair(Via::kTcp, withBulkConnection, [](Recorder&, Recorder& second) {
    second.decide = [count = 0](std::int32_t, std::span<const std::byte>,
                                std::span<const std::uint64_t>) mutable {
      return ++count % 2 == 0 ? Disposition::kDiscard : Disposition::kAccept;
    };
  });
  std::size_t sent = untilBulkConnection(*pair.a, 1);
  for (unsigned i = 0; i < 40; ++i, ++sent)
    expectOk(pair.a->send(1, sealed({randomBuffer(i % 4 == 0 ? 10 : kMiB, i)})));
  expectAllWhole(pair.second, (sent + 1) / 2);
}

TEST(BulkConnection, CloseWritesBothHalves) {
  Pair pair(Via::kTcp, withBulkConnection);
  std::size_t sent = untilBulkConnection(*pair.a, 1);
  for (unsigned i = 0; i < 4; ++i, ++sent)
    expectOk(pair.a->send(1, sealed({randomBuffer(24 * kMiB, i)})));
  pair.a->close(kPatience);
  expectAllWhole(pair.second, sent);
  ASSERT_TRUE(pair.second.waitForLosses(1));
  EXPECT_EQ(pair.second.losses()[0].reason.code(), ErrorCode::kPeerClosed);
  EXPECT_TRUE(pair.first.failed().empty());
}

// The other's goodbye is here before the second half is written.
TEST(BulkConnection, CloseWritesBothHalvesToOneThatClosesToo) {
  Pair pair(Via::kTcp, withBulkConnection);
  std::size_t sent = untilBulkConnection(*pair.a, 1);
  ASSERT_TRUE(pair.second.waitForMessages(sent));
  for (unsigned i = 0; i < 4; ++i, ++sent)
    expectOk(pair.a->send(1, sealed({randomBuffer(24 * kMiB, i)})));
  std::thread one([&] { pair.a->close(kPatience); });
  letOthersBlock(milliseconds(2));
  pair.b->close(kPatience);
  one.join();
  // Heard before it closed itself, a goodbye means that nothing more goes.
  if (pair.first.losses().empty()) expectAllWhole(pair.second, sent);
}

TEST(BulkConnection, APeerMayBeLostOrLeaveInTheMidstOfIt) {
  for (const bool lose : {true, false}) {
    Pair pair(Via::kTcp, withBulkConnection);
    untilBulkConnection(*pair.a, 1);
    for (unsigned i = 0; i < 8; ++i) {
      expectOk(pair.a->send(1, sealed({randomBuffer(16 * kMiB, i)})));
      expectOk(pair.b->send(0, sealed({randomBuffer(16 * kMiB, i)})));
    }
    if (lose) {
      pair.a->losePeer(1, {ErrorCode::kPeerLost, "given up"});
      ASSERT_TRUE(pair.second.waitForLosses(1));
    }
    pair.a->close(milliseconds(0));
    pair.b->close(milliseconds(0));
  }
}

TEST(BulkConnection, WithoutSessionsAMessageIsKeptUntilBothHalvesAreWritten) {
  Pair pair(Via::kTcp, [](EndpointOptions& options) {
    withBulkConnection(options);
    options.reconnect_timeout = milliseconds(0);
  });
  std::size_t sent = untilBulkConnection(*pair.a, 1);
  for (unsigned i = 0; i < 20; ++i, ++sent)
    expectOk(pair.a->send(1, sealed({randomBuffer(8 * kMiB, i)})));
  expectAllWhole(pair.second, sent);
}

// --- through a proxy ---

// `a` dials, so that the proxy's first connection is the link and its second the bulk connection.
struct Through {
  explicit Through(const std::function<void(EndpointOptions&)>& adjust = {}) {
    EndpointOptions options0 = optionsFor(0, Via::kTcp);
    EndpointOptions options1 = optionsFor(1, Via::kTcp);
    for (EndpointOptions* options : {&options0, &options1}) {
      withBulkConnection(*options);
      options->heartbeat_interval = milliseconds(50);
      options->peer_timeout = options->reconnect_timeout = kPatience;
      if (adjust) adjust(*options);
    }
    a = openEndpoint(options0, first);
    b = openEndpoint(options1, second);
    proxy = std::make_unique<Proxy>(b->address());
    expectOk(a->addPeer({1, "worker1", proxy->address()}));
    expectOk(b->addPeer({0, "worker0", "weft1;unix=x;host=another"}));  // cannot dial
  }
  ~Through() {
    a->close();
    b->close();
  }
  void expectNobodyLost() {
    EXPECT_TRUE(first.losses().empty() && second.losses().empty());
    EXPECT_TRUE(first.failed().empty() && second.failed().empty());
  }

  Recorder first;
  Recorder second;
  std::unique_ptr<Endpoint> a;
  std::unique_ptr<Endpoint> b;
  std::unique_ptr<Proxy> proxy;
};

TEST(BulkConnectionBroken, NothingIsLostAndAnotherIsMade) {
  Through through;
  std::size_t sent = untilBulkConnection(*through.a, 1);
  ASSERT_EQ(through.proxy->connections(), 2U);
  for (unsigned i = 0; i < 4; ++i, ++sent)
    expectOk(through.a->send(1, sealed({randomBuffer(8 * kMiB, i)})));
  through.proxy->breakOne(1);
  for (unsigned i = 0; i < 4; ++i, ++sent)
    expectOk(through.a->send(1, sealed({randomBuffer(8 * kMiB, i)})));
  expectAllWhole(through.second, sent);
  sent += untilBulkConnection(*through.a, 1);
  expectAllWhole(through.second, sent);
  EXPECT_EQ(through.second.messageCount(), sent);
  EXPECT_GE(statsOf(*through.a).reconnects, 1U);
  through.expectNobodyLost();
}

TEST(BulkConnectionBroken, ALinkTakesItsLaneAlong) {
  Through through;
  std::size_t sent = untilBulkConnection(*through.a, 1);
  for (unsigned i = 0; i < 4; ++i, ++sent) {
    expectOk(through.a->send(1, sealed({randomBuffer(8 * kMiB, i)})));
    through.proxy->breakOne(through.proxy->connections() - 1 - i % 2);
  }
  expectAllWhole(through.second, sent);
  EXPECT_EQ(through.second.messageCount(), sent);
  through.expectNobodyLost();
}

TEST(BulkConnectionBroken, OneThatBringsNothingIsDoneWithout) {
  // Half of the time is waited for.
  Through through([](EndpointOptions& options) {
    options.peer_timeout = options.reconnect_timeout = milliseconds(6000);
  });
  std::size_t sent = untilBulkConnection(*through.a, 1);
  ASSERT_TRUE(through.second.waitForMessages(sent));
  through.proxy->swallowOne(1);
  expectOk(through.a->send(1, sealed({randomBuffer(kMiB, 1)})));
  expectAllWhole(through.second, ++sent);
  EXPECT_EQ(statsOf(*through.a).reconnects, 1U);
  const std::uint64_t before = statsOf(*through.a).bulk_bytes_sent;
  for (unsigned i = 0; i < 20; ++i, ++sent)
    expectOk(through.a->send(1, sealed({randomBuffer(kMiB, i)})));
  expectAllWhole(through.second, sent);
  EXPECT_EQ(statsOf(*through.a).bulk_bytes_sent, before);
  through.expectNobodyLost();
}

TEST(BulkConnectionBroken, OneThatCannotBeMadeIsDoneWithout) {
  Through through;
  expectOk(through.a->send(1, sealed({})));
  ASSERT_TRUE(through.second.waitForMessages(1));
  through.proxy->refuse();
  for (unsigned i = 0; i < 20; ++i)
    expectOk(through.a->send(1, sealed({randomBuffer(kMiB, i)})));
  expectAllWhole(through.second, 21);
  EXPECT_EQ(statsOf(*through.a).bulk_bytes_sent, 0U);
  through.expectNobodyLost();
}

// --- strangers and liars ---

Identity liar() {
  Identity self;
  self.name = "worker0";
  self.rank = 0;
  self.incarnation = 1;
  self.group = sha256(std::string("test group"));
  self.key = testKey();
  return self;
}

std::vector<std::byte> splitFrame(std::uint64_t bytes) {
  FrameHead head;
  head.flags = FrameHead::kSplit;
  head.sequence = 1;
  head.buffer_count = 1;
  head.buffer_bytes = bytes;
  std::vector<std::byte> frame(FrameHead::kBytes + 8);
  encodeFrameHead(head, frame.data());
  storeLittle<std::uint64_t>(frame.data() + FrameHead::kBytes, bytes);
  return frame;
}

struct Target {
  Target() {
    endpoint = openEndpoint(optionsFor(1, Via::kTcp), recorder);
    expectOk(endpoint->addPeer({0, "worker0", "weft1;unix=x;host=another"}));
  }
  ~Target() { endpoint->close(milliseconds(0)); }  // liars do not take leave
  Recorder recorder;
  std::unique_ptr<Endpoint> endpoint;
};

TEST(LaneLiars, ALaneOfNoLinkIsRefused) {
  Target target;
  RawClient client(*target.endpoint);
  client.claim = {7, 0, 0, 1, 1};
  EXPECT_FALSE(client.join(liar(), 1, "worker1"));
}

TEST(LaneLiars, OneLaneOfThisLinkAndNoOther) {
  Target target;
  RawClient link(*target.endpoint);
  link.claim = {7, 0, 0, 1};
  ASSERT_TRUE(link.join(liar(), 1, "worker1"));
  const auto admitted = [&](const SessionClaim& claim, const Identity& self) {
    RawClient bulk(*target.endpoint);
    bulk.claim = claim;
    return bulk.join(self, 1, "worker1");
  };
  EXPECT_FALSE(admitted({7, 0, 0, 2, 1}, liar()));  // of a later link
  EXPECT_FALSE(admitted({8, 0, 0, 1, 1}, liar()));  // of another session
  Identity another = liar();
  another.incarnation = 2;
  EXPECT_FALSE(admitted({7, 0, 0, 1, 1}, another));
  EXPECT_FALSE(admitted({7, 0, 0, 1, 2}, liar()));  // there is no such bulk connection
  RawClient bulk(*target.endpoint);
  bulk.claim = {7, 0, 0, 1, 1};
  EXPECT_TRUE(bulk.join(liar(), 1, "worker1"));
  EXPECT_FALSE(admitted({7, 0, 0, 1, 1}, liar()));  // it has one
}

TEST(LaneLiars, HalfAMessageOverALaneThatIsNotThereEndsTheLink) {
  Target target;
  RawClient link(*target.endpoint);
  link.claim = {7, 0, 0, 1};
  ASSERT_TRUE(link.join(liar(), 1, "worker1"));
  link.send(splitFrame(kMiB));
  ASSERT_TRUE(target.recorder.waitForLosses(1));
  EXPECT_EQ(target.recorder.losses()[0].reason.code(), ErrorCode::kProtocol);
}

// Keeps the endpoint's bulk thread, once.
struct HoldsBulkThread final : Arrivals {
  explicit HoldsBulkThread(std::shared_future<void> until) : go(std::move(until)) {}
  void onBytes(const std::byte*, std::size_t) noexcept override {
    if (!endpoint->onLoopThread() && !entered.exchange(true)) go.wait();
  }
  Endpoint* endpoint = nullptr;
  std::atomic<bool> entered{false};
  const std::shared_future<void> go;
};

// The bulk thread has not heard that a connection was cut, and a thread that sends still holds it.
TEST(BulkConnection, AnEndpointClosesWhileAThreadHoldsAConnection) {
  std::promise<void> go;
  std::promise<void> let_go;
  const auto arrivals = std::make_shared<HoldsBulkThread>(go.get_future().share());
  Pair pair(
      Via::kTcp,
      [](EndpointOptions& options) {
        withBulkConnection(options);
        options.peer_timeout = options.reconnect_timeout = kPatience;
      },
      [&](Recorder& first, Recorder&) { first.listen = [&] { return arrivals; }; });
  arrivals->endpoint = pair.a.get();
  untilBulkConnection(*pair.a, 1);
  ASSERT_TRUE(eventually([&] { return statsOf(*pair.a).queued_bytes == 0; }));
  expectOk(pair.b->send(0, sealed({randomBuffer(kMiB, 1)})));
  ASSERT_TRUE(eventually([&] { return arrivals->entered.load(); }));
  std::atomic<bool> holds{false};
  Message message = sealed({randomBuffer(2 * kThreshold, 2)});
  message.until_written = std::shared_ptr<void>(&holds, [&](void*) {
    holds = true;
    let_go.get_future().wait();
  });
  std::thread sender([&] { expectOk(pair.a->send(1, std::move(message))); });
  ASSERT_TRUE(eventually([&] { return holds.load(); }));
  auto closing = std::async(std::launch::async, [&] { pair.a->close(milliseconds(0)); });
  EXPECT_EQ(closing.wait_for(milliseconds(300)), std::future_status::timeout);
  go.set_value();
  EXPECT_EQ(closing.wait_for(kPatience), std::future_status::ready);
  let_go.set_value();
  sender.join();
}

}  // namespace
}  // namespace weft::transport
