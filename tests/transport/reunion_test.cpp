// Peers that lost each other and both live: they meet again by themselves, with a new session, in
// which nothing of the old one comes.
#include <signal.h>

#include <stdexcept>
#include <string>

#include "tests/transport/between.h"
#include "tests/transport/child_peer.h"
#include "tests/transport/recorder.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

// Losses are found, and peers dialled again, within a test's patience.
void quick(EndpointOptions& options) {
  options.reunite = true;
  options.heartbeat_interval = milliseconds(30);
  options.peer_timeout = milliseconds(800);
  options.reconnect_timeout = milliseconds(800);
  options.handshake_timeout = milliseconds(600);
  options.connect_timeout = milliseconds(1200);
}

class Reunions : public ::testing::TestWithParam<Via> {};
INSTANTIATE_TEST_SUITE_P(Each, Reunions, ::testing::Values(Via::kUnix, Via::kTcp), viaName);

std::vector<std::string> textsOf(Recorder& recorder) {
  std::vector<std::string> texts;
  for (const Recorder::Received& message : recorder.messages())
    texts.push_back(message.header);
  return texts;
}

TEST_P(Reunions, TwoThatAreCutOffForLongMeetAgain) {
  Between between(GetParam(), quick);
  std::vector<std::string> sent;
  for (std::size_t outage = 1; outage <= 3; ++outage) {
    sent.push_back("before " + std::to_string(outage));
    expectOk(between.a->send(1, textMessage(sent.back())));
    ASSERT_TRUE(between.second.waitForMessages(sent.size()));
    ASSERT_TRUE(eventually([&] { return statsOf(*between.a).queued_bytes == 0; }));
    between.swallowAll(true);
    expectOk(between.a->send(1, textMessage("in the outage")));
    ASSERT_TRUE(between.first.waitForLosses(outage));
    ASSERT_TRUE(between.second.waitForLosses(outage));
    ASSERT_TRUE(between.first.waitForFailed(outage));
    EXPECT_EQ(between.a->send(1, textMessage("too late")).code(), ErrorCode::kPeerLost);
    EXPECT_EQ(between.b->send(0, textMessage("too late")).code(), ErrorCode::kPeerLost);
    between.swallowAll(false);
    ASSERT_TRUE(between.first.waitForReturned(outage));
    ASSERT_TRUE(between.second.waitForReturned(outage));
    expectOk(between.b->send(0, textMessage("back")));
    ASSERT_TRUE(between.first.waitForMessages(outage));
  }
  EXPECT_EQ(textsOf(between.second), sent);
  EXPECT_EQ(between.first.losses().size(), 3U);
  EXPECT_EQ(between.second.losses().size(), 3U);
  EXPECT_EQ(between.first.returned()[0].name, "worker1");
}

// The connection breaks in the new session as in any other.
TEST_P(Reunions, TheNewSessionIsMadeAgainWhenItBreaks) {
  Between between(GetParam(), [](EndpointOptions& options) {
    quick(options);
    // A sanitizer's handshake on a busy machine is slow.
    options.peer_timeout = options.reconnect_timeout = milliseconds(4000);
    options.handshake_timeout = milliseconds(2000);
  });
  expectOk(between.a->send(1, textMessage("one")));
  ASSERT_TRUE(between.second.waitForMessages(1));
  between.swallowAll(true);
  ASSERT_TRUE(between.first.waitForLosses(1));
  ASSERT_TRUE(between.second.waitForLosses(1));
  between.swallowAll(false);
  ASSERT_TRUE(between.second.waitForReturned(1));
  for (int i = 0; i < 200; ++i) {
    if (i % 50 == 25) between.breakAll();
    expectOk(between.b->send(0, textMessage(std::to_string(i))));
  }
  ASSERT_TRUE(between.first.waitForMessages(200));
  EXPECT_EQ(between.first.messages().back().header, "199");
  EXPECT_EQ(between.first.losses().size(), 1U);
  EXPECT_EQ(between.second.losses().size(), 1U);
}

// The two have lost each other when the successor comes, so this process does not know of it.
TEST_P(Reunions, AProcessWhoseSuccessorCameStaysOut) {
  Between between(GetParam(), quick);
  expectOk(between.a->send(1, textMessage("one")));
  ASSERT_TRUE(between.second.waitForMessages(1));
  between.swallowAll(true);
  ASSERT_TRUE(between.first.waitForLosses(1));
  ASSERT_TRUE(between.second.waitForLosses(1));
  EndpointOptions options = optionsFor(0, GetParam());
  quick(options);
  Recorder third;
  const auto successor = openEndpoint(options, third);
  expectOk(successor->addPeer({1, "worker1", between.b->address()}));
  expectOk(successor->send(1, textMessage("successor")));
  ASSERT_TRUE(between.second.waitForMessages(2));
  between.swallowAll(false);
  successor->close();
  ASSERT_TRUE(between.second.waitForLosses(2));
  timeForWhatMustNotHappen(milliseconds(500));  // it would come in by now
  EXPECT_EQ(between.second.joined().size(), 1U);
  EXPECT_TRUE(between.second.returned().empty());
  EXPECT_TRUE(between.first.returned().empty());
}

// What an application throws when it hears of news.
void throwAtNews(Between& between) {
  between.first.react_to_news =
      between.second.react_to_news = [] { throw std::runtime_error("an application's own"); };
}

TEST_P(Reunions, AHandlerThatThrowsAtAReturnKeepsThePeer) {
  Between between(GetParam(), quick, throwAtNews);
  const LoggedErrors errors;
  expectOk(between.a->send(1, textMessage("before")));
  ASSERT_TRUE(between.second.waitForMessages(1));
  between.swallowAll(true);
  ASSERT_TRUE(between.first.waitForLosses(1));
  ASSERT_TRUE(between.second.waitForLosses(1));
  between.swallowAll(false);
  ASSERT_TRUE(between.first.waitForReturned(1));
  ASSERT_TRUE(between.second.waitForReturned(1));
  expectOk(between.b->send(0, textMessage("back")));
  expectOk(between.a->send(1, textMessage("after")));
  ASSERT_TRUE(between.first.waitForMessages(1));
  ASSERT_TRUE(between.second.waitForMessages(2));
  EXPECT_NE(errors.text().find("an application's own"), std::string::npos) << errors.text();
  EXPECT_EQ(between.first.returned().size() + between.second.returned().size(), 2U);
}

// A live worker loses its place while the network is down, and nobody tells it then: it hears so
// once, loudly, when the network is back. Either of the two may be the lower rank.
void displace(Via via, std::int32_t rank, bool throws = false) {
  Between between(via, quick, [throws](Between& made) {
    if (throws) throwAtNews(made);
  });
  Recorder& displaced = rank == 0 ? between.first : between.second;
  Recorder& keeper = rank == 0 ? between.second : between.first;
  Endpoint& own = rank == 0 ? *between.a : *between.b;
  Endpoint& other = rank == 0 ? *between.b : *between.a;
  expectOk(own.send(1 - rank, textMessage("one")));
  ASSERT_TRUE(keeper.waitForMessages(1));
  between.swallowAll(true);
  ASSERT_TRUE(between.first.waitForLosses(1));
  ASSERT_TRUE(between.second.waitForLosses(1));
  EndpointOptions options = optionsFor(rank, via);
  quick(options);
  Recorder third;
  const auto newcomer = openEndpoint(options, third);
  expectOk(newcomer->addPeer(infoOf(1 - rank, other)));
  expectOk(newcomer->send(1 - rank, textMessage("in its place")));
  ASSERT_TRUE(keeper.waitForMessages(2));
  const LoggedErrors errors;
  between.swallowAll(false);
  ASSERT_TRUE(displaced.waitForDisplaced(1));
  const std::string name = "worker '" + optionsFor(rank).name + "' (rank " + std::to_string(rank);
  EXPECT_NE(errors.text().find(name + ") is displaced"), std::string::npos) << errors.text();
  EXPECT_NE(displaced.displaced()[0].reason.text().find("another process has taken this worker's"),
            std::string::npos);
  EXPECT_EQ(own.send(1 - rank, textMessage("two")).text(), displaced.displaced()[0].reason.text());
  EXPECT_TRUE(displaced.returned().empty());
  expectOk(newcomer->send(1 - rank, textMessage("still in its place")));
  ASSERT_TRUE(keeper.waitForMessages(3));
  newcomer->close();
}

TEST_P(Reunions, ADisplacedProcessOfLowerRankIsTold) { displace(GetParam(), 0); }
TEST_P(Reunions, ADisplacedProcessOfHigherRankIsTold) { displace(GetParam(), 1); }
TEST_P(Reunions, AndOneWhoseApplicationThrowsThen) { displace(GetParam(), 0, true); }

// An endpoint here that knows the child, as the child knows it.
std::unique_ptr<Endpoint> meet(ChildPeer& child, Via via, std::int32_t own, Recorder& recorder) {
  EndpointOptions options = optionsFor(own, via);
  quick(options);
  auto endpoint = openEndpoint(options, recorder);
  expectOk(endpoint->addPeer({1, "worker1", child.address()}));
  child.introduce(*endpoint);
  return endpoint;
}

// A process that is stopped hears of its loss when it goes on. `own`: the lower rank dials.
void stopAndGoOn(Via via, std::int32_t own) {
  ChildPeer child(via, quick, own);
  Recorder recorder;
  const auto endpoint = meet(child, via, own, recorder);
  ASSERT_TRUE(recorder.waitForMessages(1));
  child.kill(SIGSTOP);
  expectOk(endpoint->send(1, textMessage("while it is stopped")));
  ASSERT_TRUE(recorder.waitForLosses(1));
  timeForWhatMustNotHappen(milliseconds(500));
  EXPECT_TRUE(recorder.returned().empty());
  EXPECT_EQ(endpoint->send(1, textMessage("say no")).code(), ErrorCode::kPeerLost);
  child.kill(SIGCONT);
  ASSERT_TRUE(recorder.waitForReturned(1));
  expectOk(endpoint->send(1, textMessage("say yes")));
  ASSERT_TRUE(recorder.waitForMessages(2));
  EXPECT_EQ(recorder.messages()[1].header, "yes");
  EXPECT_EQ(recorder.losses().size(), 1U);
}

TEST_P(Reunions, AStoppedPeerComesBack) { stopAndGoOn(GetParam(), 0); }
TEST_P(Reunions, AStoppedPeerOfLowerRankComesBack) { stopAndGoOn(GetParam(), 2); }

TEST_P(Reunions, ADeadPeerStaysLostAndKeepsNobodyFromClosing) {
  ChildPeer child(GetParam(), quick);
  Recorder recorder;
  const auto endpoint = meet(child, GetParam(), 0, recorder);
  ASSERT_TRUE(recorder.waitForMessages(1));
  child.kill(SIGKILL);
  ASSERT_TRUE(recorder.waitForLosses(1));
  timeForWhatMustNotHappen(milliseconds(500));
  EXPECT_EQ(endpoint->send(1, textMessage("too late")).text(), recorder.losses()[0].reason.text());
  endpoint->close();
  EXPECT_TRUE(recorder.returned().empty());
  EXPECT_EQ(recorder.losses().size(), 1U);
}

}  // namespace
}  // namespace weft::transport
