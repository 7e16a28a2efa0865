// Endpoints that work as they should: messages of all sizes, over all transports, in order.
#include "transport/endpoint.h"

#include <openssl/sha.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "tests/transport/other_user.h"
#include "tests/transport/recorder.h"
#include "transport/io/address.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

class Transports : public ::testing::TestWithParam<Via> {};
INSTANTIATE_TEST_SUITE_P(Each, Transports, ::testing::Values(Via::kUnix, Via::kTcp, Via::kTls),
                         viaName);

std::string digest(const OwnedBuffer& buffer) {
  std::array<unsigned char, 32> out{};
  ::SHA256(reinterpret_cast<const unsigned char*>(buffer.data), buffer.size, out.data());
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

OwnedBuffer randomBuffer(std::size_t size, std::mt19937_64& random) {
  OwnedBuffer buffer = newBuffer(size);
  std::size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(buffer.data + at, &word, 8);
  }
  for (; at < size; ++at)
    buffer.data[at] = static_cast<std::byte>(random());
  return buffer;
}

TEST_P(Transports, MessagesGoBothWays) {
  Pair pair(GetParam());
  expectOk(pair.a->send(1, textMessage("there")));
  ASSERT_TRUE(pair.second.waitForMessages(1));
  EXPECT_EQ(pair.second.messages()[0].header, "there");
  EXPECT_EQ(pair.second.messages()[0].from, 0);
  expectOk(pair.b->send(0, textMessage("back")));
  ASSERT_TRUE(pair.first.waitForMessages(1));
  const EndpointStats stats = pair.a->stats();
  ASSERT_EQ(stats.peers.size(), 1U);
  EXPECT_EQ(stats.peers[0].transport, overTcp(GetParam()) ? "tcp" : "unix");
  EXPECT_EQ(stats.peers[0].messages_sent, 1U);
  EXPECT_EQ(stats.peers[0].messages_received, 1U);
}

TEST_P(Transports, BuffersOfAllSizesArriveWhole) {
  Pair pair(GetParam());
  std::mt19937_64 random(1);
  std::vector<std::string> sent;
  for (const std::size_t size : {0UL, 1UL, 4095UL, 65'536UL, 65'537UL, 1UL << 20, 33UL << 20}) {
    Message message = textMessage("size " + std::to_string(size));
    message.buffers = {randomBuffer(size, random), randomBuffer(3, random),
                       randomBuffer(size / 2, random)};
    for (const OwnedBuffer& buffer : message.buffers)
      sent.push_back(digest(buffer));
    expectOk(pair.a->send(1, std::move(message)));
  }
  ASSERT_TRUE(pair.second.waitForMessages(7));
  std::vector<std::string> received;
  for (const auto& message : pair.second.messages()) {
    for (const OwnedBuffer& buffer : message.buffers)
      received.push_back(digest(buffer));
  }
  EXPECT_EQ(received, sent);
}

TEST_P(Transports, MuchEachWayAtOnce) {
  // Both send before either has read all: readers that paused would deadlock.
  Pair pair(GetParam());
  std::mt19937_64 random(2);
  // More than any socket takes; a sanitizer makes copies slow.
  constexpr std::size_t kMebibytes = 32;
  const OwnedBuffer big = randomBuffer(kMebibytes << 20, random);
  const std::string expected = digest(big);
  expectOk(pair.a->send(1, {bytesOf("a"), {big}}));
  expectOk(pair.b->send(0, {bytesOf("b"), {big}}));
  ASSERT_TRUE(pair.first.waitForMessages(1));
  ASSERT_TRUE(pair.second.waitForMessages(1));
  EXPECT_EQ(digest(pair.first.messages()[0].buffers[0]), expected);
  EXPECT_EQ(digest(pair.second.messages()[0].buffers[0]), expected);
}

TEST_P(Transports, ThousandsOfBuffersInOneMessage) {
  Pair pair(GetParam());
  std::mt19937_64 random(3);
  Message message = textMessage("many");
  std::string sent;
  for (int i = 0; i < 5000; ++i) {
    message.buffers.push_back(randomBuffer(random() % 300, random));
    sent += textOf({message.buffers.back().data, message.buffers.back().size});
  }
  expectOk(pair.a->send(1, std::move(message)));
  ASSERT_TRUE(pair.second.waitForMessages(1));
  std::string received;
  const auto messages = pair.second.messages();
  for (const OwnedBuffer& buffer : messages[0].buffers)
    received += textOf({buffer.data, buffer.size});
  EXPECT_EQ(received, sent);
}

TEST_P(Transports, ManyThreadsSendAndEachKeepsItsOrder) {
  Pair pair(GetParam());
  constexpr int kThreads = 8;
  constexpr int kEach = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        Message message = textMessage(std::to_string(t) + ":" + std::to_string(i));
        if (i % 100 == 0) message.buffers.push_back(newBuffer(100'000));
        expectOk(pair.a->send(1, std::move(message)));
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  ASSERT_TRUE(pair.second.waitForMessages(kThreads * kEach));
  std::vector<int> next(kThreads, 0);
  for (const auto& message : pair.second.messages()) {
    const std::size_t colon = message.header.find(':');
    const int thread = std::stoi(message.header.substr(0, colon));
    EXPECT_EQ(std::stoi(message.header.substr(colon + 1)), next[thread]++);
  }
}

TEST_P(Transports, AHandlerMaySendFromTheLoopThread) {
  Endpoint* answering = nullptr;
  Pair pair(GetParam(), {}, [&](Recorder&, Recorder& second) {
    second.react = [&](const Recorder::Received& received) {
      EXPECT_TRUE(answering->onLoopThread());
      expectOk(answering->send(received.from, textMessage("re: " + received.header)));
    };
  });
  answering = pair.b.get();
  for (int i = 0; i < 100; ++i)
    expectOk(pair.a->send(1, textMessage(std::to_string(i))));
  ASSERT_TRUE(pair.first.waitForMessages(100));
  EXPECT_EQ(pair.first.messages()[99].header, "re: 99");
  EXPECT_FALSE(pair.a->onLoopThread());
}

TEST_P(Transports, SimultaneousDialsLeaveOneConnection) {
  for (int round = 0; round < 150; ++round) {
    Pair pair(GetParam());
    std::atomic<int> ready{0};
    const auto go = [&](Endpoint& endpoint, std::int32_t to) {
      ++ready;
      while (ready < 2) {
      }
      for (int i = 0; i < 5; ++i)
        expectOk(endpoint.send(to, textMessage(std::to_string(i))));
    };
    std::thread other([&] { go(*pair.b, 0); });
    go(*pair.a, 1);
    other.join();
    ASSERT_TRUE(pair.first.waitForMessages(5)) << round;
    ASSERT_TRUE(pair.second.waitForMessages(5)) << round;
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(pair.first.messages()[i].header, std::to_string(i));
    ASSERT_TRUE(pair.first.losses().empty()) << pair.first.losses()[0].reason.text();
    ASSERT_TRUE(pair.second.losses().empty()) << pair.second.losses()[0].reason.text();
  }
}

TEST(Endpoint, PeersOfOneHostUseTheUnixSocketAndOthersTcp) {
  Pair near(Via::kBoth);
  expectOk(near.a->send(1, textMessage("x")));
  ASSERT_TRUE(near.second.waitForMessages(1));
  EXPECT_EQ(near.a->stats().peers[0].transport, "unix");

  // The same with an address that tells of another host.
  Recorder first;
  Recorder second;
  const auto a = openEndpoint(optionsFor(0, Via::kBoth), first);
  const auto b = openEndpoint(optionsFor(1, Via::kBoth), second);
  Address address = parseAddress(b->address()).value();
  address.host = "elsewhere";
  expectOk(a->addPeer({1, "worker1", formatAddress(address)}));
  expectOk(b->addPeer(infoOf(0, *a)));
  expectOk(a->send(1, textMessage("x")));
  ASSERT_TRUE(second.waitForMessages(1));
  EXPECT_EQ(a->stats().peers[0].transport, "tcp");
}

TEST(Endpoint, FallsBackToTcpWhenTheUnixSocketIsNotThere) {
  Recorder first;
  Recorder second;
  const auto a = openEndpoint(optionsFor(0, Via::kBoth), first);
  const auto b = openEndpoint(optionsFor(1, Via::kBoth), second);
  Address address = parseAddress(b->address()).value();
  address.unix_name = "weft-nobody-is-here";
  expectOk(a->addPeer({1, "worker1", formatAddress(address)}));
  expectOk(b->addPeer(infoOf(0, *a)));
  expectOk(a->send(1, textMessage("x")));
  ASSERT_TRUE(second.waitForMessages(1));
  EXPECT_EQ(a->stats().peers[0].transport, "tcp");
}

// Rank 1 runs as another user of this host.
std::string transportToAnotherUser(bool accept) {
  EndpointOptions options0 = optionsFor(0, Via::kBoth);
  EndpointOptions options1 = optionsFor(1, Via::kBoth);
  options0.accept_other_users = options1.accept_other_users = accept;
  Recorder first;
  Recorder second;
  const auto a = openEndpoint(options0, first);
  std::unique_ptr<Endpoint> b;
  if (!asAnotherUser([&] { b = openEndpoint(options1, second); })) return "";
  expectOk(a->addPeer(infoOf(1, *b)));
  expectOk(b->addPeer(infoOf(0, *a)));
  expectOk(a->send(1, textMessage("x")));
  EXPECT_TRUE(second.waitForMessages(1));
  const std::string transport = statsOf(*a).transport;
  a->close();
  b->close();
  return transport;
}

TEST(Endpoint, AnotherUsersProcessIsReachedOverTcpUnlessTheOptionAllowsTheUnixSocket) {
  const std::string without = transportToAnotherUser(false);
  if (without.empty()) GTEST_SKIP() << "becoming another user needs root";
  EXPECT_EQ(without, "tcp");
  EXPECT_EQ(transportToAnotherUser(true), "unix");
}

TEST(Endpoint, WhoFindsOnlyAnotherUsersUnixSocketSaysSo) {
  EndpointOptions options = optionsFor(0, Via::kUnix);
  options.connect_timeout = milliseconds(300);
  Recorder first;
  Recorder second;
  const auto a = openEndpoint(options, first);
  std::unique_ptr<Endpoint> b;
  if (!asAnotherUser([&] { b = openEndpoint(optionsFor(1, Via::kUnix), second); }))
    GTEST_SKIP() << "becoming another user needs root";
  expectOk(a->addPeer(infoOf(1, *b)));
  expectOk(a->send(1, textMessage("x")));
  ASSERT_TRUE(first.waitForLosses(1));
  const std::string text = first.losses()[0].reason.text();
  EXPECT_NE(text.find("another user's process (uid 65534)"), std::string::npos) << text;
  EXPECT_NE(text.find("WEFT_OTHER_USERS=1"), std::string::npos) << text;
}

TEST(Endpoint, WorksOverIpv6) {
  Recorder first;
  Recorder second;
  EndpointOptions options = optionsFor(0, Via::kTcp);
  options.listen_address = "::1";
  Result<std::unique_ptr<Endpoint>> a = Endpoint::create(options, first);
  if (!a.ok()) GTEST_SKIP() << "no IPv6 here: " << a.error().text();
  const auto b = openEndpoint(optionsFor(1, Via::kTcp), second);
  expectOk(b->addPeer(infoOf(0, *a.value())));
  expectOk(a.value()->addPeer(infoOf(1, *b)));
  expectOk(b->send(0, textMessage("six")));
  EXPECT_TRUE(first.waitForMessages(1));
}

TEST(Endpoint, AllOfThirtyTwoTalkToAll) {
  constexpr int kCount = 32;
  std::vector<std::unique_ptr<Recorder>> recorders;
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int i = 0; i < kCount; ++i) {
    recorders.push_back(std::make_unique<Recorder>());
    endpoints.push_back(
        openEndpoint(optionsFor(i, i % 2 == 0 ? Via::kBoth : Via::kTcp), *recorders.back()));
  }
  for (int i = 0; i < kCount; ++i) {
    for (int k = 0; k < kCount; ++k) {
      if (i != k) expectOk(endpoints[i]->addPeer(infoOf(k, *endpoints[k])));
    }
  }
  for (int i = 0; i < kCount; ++i) {
    for (int k = 0; k < kCount; ++k) {
      if (i != k) expectOk(endpoints[i]->send(k, textMessage(std::to_string(i))));
    }
  }
  for (int i = 0; i < kCount; ++i) {
    ASSERT_TRUE(recorders[i]->waitForMessages(kCount - 1))
        << i << " has " << recorders[i]->messageCount();
    for (const auto& message : recorders[i]->messages())
      EXPECT_EQ(message.header, std::to_string(message.from));
    EXPECT_TRUE(recorders[i]->losses().empty());
  }
}

TEST(Endpoint, SaysWhoItCannotSendTo) {
  Pair pair;
  EXPECT_EQ(pair.a->send(0, textMessage("me")).code(), ErrorCode::kInvalidArgument);
  const Error unknown = pair.a->send(7, textMessage("who"));
  EXPECT_EQ(unknown.code(), ErrorCode::kUnknownPeer);
  EXPECT_NE(unknown.text().find("rank 7"), std::string::npos);
  Message large;
  large.header.resize((std::size_t{16} << 20) + 1);
  EXPECT_EQ(pair.a->send(1, std::move(large)).code(), ErrorCode::kLimitExceeded);
  // Nothing was upset by that.
  expectOk(pair.a->send(1, textMessage("fine")));
  EXPECT_TRUE(pair.second.waitForMessages(1));
}

TEST(Endpoint, RefusesOptionsThatMakeNoSense) {
  Recorder recorder;
  const auto code = [&](const std::function<void(EndpointOptions&)>& change) {
    EndpointOptions options = optionsFor(0, Via::kBoth);
    change(options);
    const Result<std::unique_ptr<Endpoint>> made = Endpoint::create(options, recorder);
    return made.ok() ? ErrorCode::kOk : made.error().code();
  };
  EXPECT_EQ(code([](EndpointOptions&) {}), ErrorCode::kOk);
  EXPECT_EQ(code([](EndpointOptions& o) { o.name = ""; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](EndpointOptions& o) { o.name = std::string(128, 'n'); }), ErrorCode::kOk);
  EXPECT_EQ(code([](EndpointOptions& o) { o.name = std::string(129, 'n'); }),
            ErrorCode::kInvalidArgument);
  // As the hello's parser: no peer could read it.
  EXPECT_EQ(code([](EndpointOptions& o) { o.name = "two\nlines"; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](EndpointOptions& o) { o.name = "\x7f"; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](EndpointOptions& o) { o.name = "\u0085 \u00e4"; }), ErrorCode::kOk);
  EXPECT_EQ(code([](EndpointOptions& o) { o.rank = -1; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](EndpointOptions& o) { o.key = AuthKey(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](EndpointOptions& o) { o.listen_address = "0.0.0.0"; }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](EndpointOptions& o) { o.listen_address = "::"; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](EndpointOptions& o) { o.listen_address = "localhost"; }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](EndpointOptions& o) { o.listen_address = "192.0.2.77"; }), ErrorCode::kSystem);
  EXPECT_EQ(code([](EndpointOptions& o) { o.tcp = o.unix_socket = false; }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](EndpointOptions& o) { o.peer_timeout = milliseconds(1500); }),
            ErrorCode::kInvalidArgument);
}

TEST(Endpoint, AddPeerIsIdempotentAndWatchful) {
  Pair pair;
  expectOk(pair.a->addPeer(infoOf(1, *pair.b)));
  EXPECT_EQ(pair.a->addPeer({1, "other", pair.b->address()}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.a->addPeer({1, "worker1", "weft1;unix=elsewhere"}).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.a->addPeer({0, "worker0", pair.a->address()}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.a->addPeer({2, "worker2", "gibberish"}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.a->addPeer({-2, "worker2", pair.b->address()}).code(),
            ErrorCode::kInvalidArgument);
}

TEST(Endpoint, RunsTasksLaterOnItsLoopThread) {
  Pair pair;
  std::promise<bool> ran;
  pair.a->runAfter(milliseconds(1), [&] { ran.set_value(pair.a->onLoopThread()); });
  std::future<bool> result = ran.get_future();
  ASSERT_EQ(result.wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(result.get());
}

}  // namespace
}  // namespace weft::transport
