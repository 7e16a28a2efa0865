// Peers that die, hang, leave or never were there. Real processes, forked before any thread
// of this one is started.
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/transport/child_peer.h"
#include "tests/transport/recorder.h"
#include "transport/base/os/unique_fd.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

class Loss : public ::testing::TestWithParam<Via> {
 protected:
  void connect(ChildPeer& child, const std::function<void(EndpointOptions&)>& adjust = {}) {
    EndpointOptions options = optionsFor(0, GetParam());
    if (adjust) adjust(options);
    endpoint = openEndpoint(options, recorder);
    expectOk(endpoint->addPeer({1, "worker1", child.address()}));
    child.introduce(*endpoint);
    ASSERT_TRUE(recorder.waitForMessages(1));
  }

  Recorder recorder;
  std::unique_ptr<Endpoint> endpoint;
};
INSTANTIATE_TEST_SUITE_P(Each, Loss, ::testing::Values(Via::kUnix, Via::kTcp), viaName);

TEST_P(Loss, AKilledPeerIsToldOnceAndByName) {
  ChildPeer child(GetParam());
  // No heartbeat can be what tells: the timeout is far beyond this test's patience.
  connect(child, [](EndpointOptions& options) { options.peer_timeout = std::chrono::hours(1); });
  child.kill(SIGKILL);
  ASSERT_TRUE(recorder.waitForLosses(1));
  const PeerLoss loss = recorder.losses()[0];
  EXPECT_EQ(loss.rank, 1);
  EXPECT_EQ(loss.reason.code(), ErrorCode::kPeerLost);
  EXPECT_NE(loss.reason.text().find("worker 'worker1' (rank 1) is lost"), std::string::npos)
      << loss.reason.text();
  const Error later = endpoint->send(1, textMessage("too late"));
  EXPECT_EQ(later.text(), loss.reason.text());
  endpoint->close();
  EXPECT_EQ(recorder.losses().size(), 1U);
}

TEST_P(Loss, AKilledPeerIsToldWhileManyThreadsSendToIt) {
  ChildPeer child(GetParam());
  connect(child);
  std::atomic<int> ended{0};
  std::vector<std::thread> senders;
  for (int t = 0; t < 4; ++t) {
    senders.emplace_back([&] {
      for (int i = 0;; ++i) {
        const Error error =
            endpoint->send(1, {bytesOf("x"), {newBuffer(i % 50 == 0 ? 3'000'000 : 100)}});
        if (!error) continue;
        EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.text();
        break;
      }
      ++ended;
    });
  }
  child.kill(SIGKILL);
  for (std::thread& sender : senders)
    sender.join();
  EXPECT_EQ(ended, 4);
  ASSERT_TRUE(recorder.waitForLosses(1));
  endpoint->close();
  EXPECT_EQ(recorder.losses().size(), 1U);
}

TEST_P(Loss, AStoppedPeerIsFoundByItsSilence) {
  ChildPeer child(GetParam(),
                  [](EndpointOptions& options) { options.heartbeat_interval = milliseconds(50); });
  connect(child, [](EndpointOptions& options) {
    options.heartbeat_interval = milliseconds(50);
    options.peer_timeout = milliseconds(600);
  });
  child.kill(SIGSTOP);
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_EQ(recorder.losses()[0].reason.code(), ErrorCode::kPeerLost);
  EXPECT_NE(recorder.losses()[0].reason.text().find("sent nothing for"), std::string::npos)
      << recorder.losses()[0].reason.text();
}

TEST_P(Loss, AStoppedPeerIsFoundAlsoWithMuchQueuedToIt) {
  ChildPeer child(GetParam(),
                  [](EndpointOptions& options) { options.heartbeat_interval = milliseconds(50); });
  connect(child, [](EndpointOptions& options) {
    options.heartbeat_interval = milliseconds(50);
    options.peer_timeout = milliseconds(2000);
  });
  child.kill(SIGSTOP);
  expectOk(endpoint->send(1, {bytesOf("big"), {newBuffer(100 << 20)}}));
  ASSERT_TRUE(recorder.waitForLosses(1));
  ASSERT_EQ(recorder.failed().size(), 1U);
  EXPECT_EQ(recorder.failed()[0].first, "big");
}

TEST_P(Loss, AnIdlePeerThatLivesIsNotLost) {
  ChildPeer child(GetParam(),
                  [](EndpointOptions& options) { options.heartbeat_interval = milliseconds(20); });
  connect(child, [](EndpointOptions& options) {
    options.heartbeat_interval = milliseconds(20);
    options.peer_timeout = milliseconds(2000);
  });
  // Several heartbeats long: they are what is counted, no time is waited for.
  const std::uint64_t before = endpoint->stats().peers[0].bytes_received;
  EXPECT_TRUE(
      eventually([&] { return endpoint->stats().peers[0].bytes_received >= before + 10 * 40; }));
  EXPECT_TRUE(recorder.losses().empty());
}

TEST_P(Loss, APeerThatLeavesInOrderIsClosedNotLost) {
  ChildPeer child(GetParam());
  connect(child);
  child.leave();
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_EQ(recorder.losses()[0].reason.code(), ErrorCode::kPeerClosed);
}

TEST_P(Loss, APeerThatEndedBeforeTheFirstMessageFailsItAtOnce) {
  ChildPeer child(GetParam());
  const std::string address = child.address();
  child.finish();
  EndpointOptions options = optionsFor(0, GetParam());
  options.connect_timeout = std::chrono::hours(1);  // only a definite refusal can end it
  endpoint = openEndpoint(options, recorder);
  expectOk(endpoint->addPeer({1, "worker1", address}));
  expectOk(endpoint->send(1, textMessage("first")));
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_EQ(recorder.losses()[0].reason.code(), ErrorCode::kConnectFailed);
  EXPECT_NE(recorder.losses()[0].reason.text().find("worker 'worker1' (rank 1)"),
            std::string::npos);
  ASSERT_EQ(recorder.failed().size(), 1U);
  EXPECT_EQ(recorder.failed()[0].first, "first");
}

TEST_P(Loss, ANewLifeUnderAnotherAddressIsAnotherPeer) {
  ChildPeer child(GetParam());
  ChildPeer again(GetParam());
  connect(child);
  child.kill(SIGKILL);
  ASSERT_TRUE(recorder.waitForLosses(1));
  expectOk(endpoint->addPeer({1, "worker1", again.address()}));
  again.introduce(*endpoint);
  ASSERT_TRUE(recorder.waitForMessages(2));
  expectOk(endpoint->send(1, textMessage("hello again")));
  again.kill(SIGKILL);
  ASSERT_TRUE(recorder.waitForLosses(2));
}

// What was posted to the endpoint's loop before is done.
void waitForLoop(Endpoint& endpoint) {
  std::promise<void> done;
  endpoint.runAfter(milliseconds(0), [&] { done.set_value(); });
  done.get_future().wait();
}

// All descriptors of this process are taken, for as long as this lives.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 256);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0))
      taken_.emplace_back(fd);
  }
  ~NoMoreDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

TEST_P(Loss, AtTheLimitOfDescriptorsAConnectionIsStillMade) {
  Pair pair(GetParam());
  // Now both have a descriptor to spare, for either end.
  waitForLoop(*pair.a);
  waitForLoop(*pair.b);
  const NoMoreDescriptors none;
  expectOk(pair.a->send(1, textMessage("one")));
  ASSERT_TRUE(pair.second.waitForMessages(1));
  expectOk(pair.b->send(0, textMessage("back")));
  ASSERT_TRUE(pair.first.waitForMessages(1));
}

TEST(Dialling, AShortageOfDescriptorsIsNamed) {
  EndpointOptions options = optionsFor(0);
  options.connect_timeout = milliseconds(200);
  Recorder first;
  Recorder others[2];
  const auto a = openEndpoint(options, first);
  std::unique_ptr<Endpoint> peers[2];
  for (int i = 0; i < 2; ++i) {
    peers[i] = openEndpoint(optionsFor(i + 1), others[i]);
    expectOk(a->addPeer(infoOf(i + 1, *peers[i])));
    expectOk(peers[i]->addPeer(infoOf(0, *a)));
    waitForLoop(*peers[i]);
  }
  waitForLoop(*a);
  // UBSan needs a socket pair to look at a class for the first time; later there is none.
  Pair seen;
  expectOk(seen.a->send(1, textMessage("one")));
  ASSERT_TRUE(seen.second.waitForMessages(1));
  const NoMoreDescriptors none;
  expectOk(a->send(1, textMessage("takes the one to spare")));
  ASSERT_TRUE(others[0].waitForMessages(1));
  expectOk(a->send(2, textMessage("not heard")));
  ASSERT_TRUE(first.waitForLosses(1));
  const std::string text = first.losses()[0].reason.text();
  EXPECT_NE(text.find("EMFILE: Too many open files (RESOURCE_EXHAUSTED)"), std::string::npos)
      << text;
}

// The peer cannot tell a process that has taken another's rank and name from that one's successor.
// It keeps the one that it knows; the other one, which may be the right one, says so loudly.
TEST(Dialling, APlaceThatIsTakenIsToldFromAPeerThatIsDead) {
  Pair pair;
  expectOk(pair.a->send(1, textMessage("one")));
  ASSERT_TRUE(pair.second.waitForMessages(1));
  EndpointOptions options = optionsFor(0);
  options.connect_timeout = milliseconds(300);
  Recorder third;
  const auto other = openEndpoint(options, third);
  const LoggedErrors errors;
  expectOk(other->addPeer(infoOf(1, *pair.b)));
  expectOk(other->send(1, textMessage("not heard")));
  ASSERT_TRUE(third.waitForLosses(1));
  EXPECT_NE(
      errors.text().find("worker 'worker0' (rank 0) is not admitted: another process has its rank"),
      std::string::npos)
      << errors.text();
  EXPECT_EQ(third.losses()[0].reason.code(), ErrorCode::kDuplicate);
  const std::string text = third.losses()[0].reason.text();
  EXPECT_NE(text.find("worker 'worker1' (rank 1)"), std::string::npos) << text;
  EXPECT_NE(text.find("give every worker a rank of its own"), std::string::npos) << text;
  expectOk(pair.a->send(1, textMessage("two")));
  ASSERT_TRUE(pair.second.waitForMessages(2));
}

TEST(Dialling, AWrongKeyIsExplainedToTheDialler) {
  Recorder first;
  Recorder second;
  EndpointOptions other = optionsFor(0);
  other.key = AuthKey::fromHex(std::string(64, 'c')).value();
  const auto a = openEndpoint(other, first);
  const auto b = openEndpoint(optionsFor(1), second);
  expectOk(a->addPeer(infoOf(1, *b)));
  expectOk(a->send(1, textMessage("let me in")));
  ASSERT_TRUE(first.waitForLosses(1));
  EXPECT_EQ(first.losses()[0].reason.code(), ErrorCode::kAuthFailed);
  EXPECT_NE(first.losses()[0].reason.text().find("keys differ"), std::string::npos)
      << first.losses()[0].reason.text();
  EXPECT_TRUE(eventually([&] { return b->stats().refusedBy(RefusalCause::kKey) == 1; }));
  EXPECT_TRUE(second.losses().empty());
}

TEST(Dialling, AListenerThatNeverAnswersEndsWithTheTimeout) {
  Recorder first;
  EndpointOptions options = optionsFor(0, Via::kBoth);
  options.handshake_timeout = milliseconds(50);
  options.connect_timeout = milliseconds(200);
  const auto a = openEndpoint(options, first);
  // Listens and never accepts.
  int silent = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  ASSERT_EQ(::listen(silent, 5), 0);
  socklen_t length = sizeof(where);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&where), &length), 0);
  expectOk(
      a->addPeer({1, "worker1", "weft1;tcp=127.0.0.1:" + std::to_string(ntohs(where.sin_port))}));
  expectOk(a->send(1, textMessage("hello?")));
  ASSERT_TRUE(first.waitForLosses(1));
  EXPECT_EQ(first.losses()[0].reason.code(), ErrorCode::kConnectFailed);
  EXPECT_NE(first.losses()[0].reason.text().find("handshake was not answered"), std::string::npos)
      << first.losses()[0].reason.text();
  ::close(silent);
}

}  // namespace
}  // namespace weft::transport
