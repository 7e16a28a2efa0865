// Connections that say nothing, many of them: they wait for each other, and nobody waits for them.
#include <future>

#include "tests/transport/raw_client.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

class Crowd : public ::testing::TestWithParam<Via> {
 protected:
  Crowd() { open(GetParam()); }

  // One endpoint of rank 0, on which nobody's time in handshake ends before the test does.
  void open(Via via) {
    endpoint.reset();
    EndpointOptions options = optionsFor(0, via);
    options.handshake_timeout = std::chrono::hours(1);
    endpoint = openEndpoint(options, recorder);
  }
  // Bare connections, the oldest first.
  template <typename... From>
  void come(int count, From... from) {
    for (int i = 0; i < count; ++i)
      strangers.push_back(std::make_unique<RawClient>(*endpoint, from...));
  }
  // Until the endpoint has accepted those who came: it does so between any two of these tasks.
  void settle() {
    for (int turn = 0; turn < 8; ++turn) {
      const auto done = std::make_shared<std::promise<void>>();
      endpoint->runAfter(milliseconds(0), [done] { done->set_value(); });
      done->get_future().wait();
    }
  }
  bool joins(RawClient& client, std::int32_t rank) {
    return client.join(identityOf(optionsFor(rank)), 0, "worker0");
  }
  // A right hello, and no proof after it.
  void sayHello(RawClient& client, std::int32_t rank) {
    Nonce nonce{};
    std::memcpy(nonce.data(), &++nonces, sizeof(nonces));
    const Identity self = identityOf(optionsFor(rank));
    client.send(Handshake::dialler(self, 0, "worker0", nonce, {1, 0, 0, 1}).output());
  }
  // So many strangers from `network` say that they are of this rank, while `client` owes its proof.
  bool joinsAmong(RawClient& client, std::int32_t rank, const std::string& network, int hosts) {
    client.before_proof = [&] {
      for (int i = 0; i < 100; ++i) {
        come(1, (network + std::to_string(i % hosts + 1)).c_str());
        sayHello(*strangers.back(), rank);
        EXPECT_TRUE(isAnswered(*strangers.back()));
      }
    };
    return joins(client, rank);
  }
  static bool isAnswered(RawClient& client) {
    return client.receive(Hello::kBytes).size() == Hello::kBytes;
  }

  Recorder recorder;
  std::unique_ptr<Endpoint> endpoint;
  std::vector<std::unique_ptr<RawClient>> strangers;
  std::uint64_t nonces = 100;
};

INSTANTIATE_TEST_SUITE_P(Transports, Crowd, ::testing::Values(Via::kUnix, Via::kTcp), viaName);

TEST_P(Crowd, TheOldestStrangerMakesRoomForWhoComes) {
  come(65);
  EXPECT_TRUE(strangers.front()->ended());
  EXPECT_GE(endpoint->stats().refusedBy(RefusalCause::kOverload), 1U);
  EXPECT_EQ(endpoint->stats().refusedBy(RefusalCause::kTimeout), 0U);
  // The newest is there, and so comes in.
  EXPECT_TRUE(joins(*strangers.back(), 1));
  come(100);
  Recorder other;
  const auto real = openEndpoint(optionsFor(2, GetParam()), other);
  expectOk(endpoint->addPeer(infoOf(2, *real)));
  expectOk(real->addPeer(infoOf(0, *endpoint)));
  expectOk(real->send(0, textMessage("through the crowd")));
  EXPECT_TRUE(recorder.waitForMessages(1));
}

TEST_P(Crowd, WhatComesAtOnceIsReadBeforeAnyoneHasToGo) {
  // Forty say hello while the endpoint is busy: more than one source may have silent.
  std::promise<void> busy;
  std::promise<void> go_on;
  endpoint->runAfter(milliseconds(0), [&] {
    busy.set_value();
    go_on.get_future().wait();
  });
  busy.get_future().wait();
  come(40);
  for (int i = 0; i < 40; ++i)
    sayHello(*strangers[i], i + 1);
  go_on.set_value();
  for (const auto& client : strangers)
    EXPECT_TRUE(isAnswered(*client));
  EXPECT_EQ(endpoint->stats().refusedBy(RefusalCause::kOverload), 0U);
}

TEST_P(Crowd, FourOfARankMayOweTheirProof) {
  RawClient two(*endpoint);
  sayHello(two, 2);
  ASSERT_TRUE(isAnswered(two));
  come(5);
  for (const auto& client : strangers) {
    sayHello(*client, 1);
    ASSERT_TRUE(isAnswered(*client));
  }
  EXPECT_TRUE(strangers.front()->ended());
  // Those left are not in the way of strangers, nor these in theirs.
  come(100);
  RawClient last(*endpoint);
  EXPECT_TRUE(joins(last, 3));
  EXPECT_EQ(endpoint->stats().refusedBy(RefusalCause::kOverload), 1U + 100U + 1U - 16U);
}

TEST_P(Crowd, OneKindOfSocketLeavesRoomOnTheOther) {
  open(Via::kBoth);
  const bool over_unix = GetParam() == Via::kUnix;
  const auto comeInHundreds = [&](const std::string& network) {
    if (over_unix) come(100);
    for (int host = 1; host <= 100 && !over_unix; ++host)  // each has less than its share
      come(1, (network + std::to_string(host)).c_str());
    settle();
  };
  comeInHundreds("127.0.1.");
  const auto other = over_unix ? std::make_unique<RawClient>(*endpoint, "127.0.0.1")
                               : std::make_unique<RawClient>(*endpoint);
  settle();
  comeInHundreds("127.0.2.");
  EXPECT_TRUE(joins(*other, 1));
}

TEST_P(Crowd, OneAddressDoesNotPushOutAnother) {
  if (GetParam() == Via::kUnix) GTEST_SKIP() << "on a Unix socket all come from one user";
  RawClient early(*endpoint, "127.0.0.1");
  come(100, "127.0.0.2");
  EXPECT_TRUE(strangers.front()->ended());
  RawClient late(*endpoint, "127.0.0.1");
  come(100, "127.0.0.2");
  EXPECT_TRUE(joins(early, 1));
  EXPECT_TRUE(joins(late, 2));
}

TEST_P(Crowd, WhoeverSaysItHasAPeersRankDoesNotPushThePeerOut) {
  if (GetParam() == Via::kUnix) GTEST_SKIP() << "on a Unix socket all come from one user";
  expectOk(endpoint->addPeer({1, "worker1", "weft1;tcp=127.0.0.1:9"}));
  RawClient peer(*endpoint, "127.0.0.1");
  EXPECT_TRUE(joinsAmong(peer, 1, "127.0.4.", 100));
  // They push each other out.
  EXPECT_GE(endpoint->stats().refusedBy(RefusalCause::kOverload), 100U - 64U);
}

TEST_P(Crowd, NorOneThatIsNotKnownYetFromAnotherAddress) {
  if (GetParam() == Via::kUnix) GTEST_SKIP() << "on a Unix socket all come from one user";
  RawClient peer(*endpoint, "127.0.0.1");
  EXPECT_TRUE(joinsAmong(peer, 1, "127.0.4.", 1));
  EXPECT_EQ(endpoint->stats().refusedBy(RefusalCause::kOverload), 100U - 4U);
}

}  // namespace
}  // namespace weft::transport
