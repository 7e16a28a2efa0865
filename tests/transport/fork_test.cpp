// Forked children of a process with an endpoint: they get errors at once, end at once, and their
// parent and its peers notice nothing.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/transport/recorder.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

// The status of a child that runs `body`; -1 when it had to be killed.
int statusOfChild(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  const bool ended = waitUntil([&] { return ::waitpid(pid, &status, WNOHANG) == pid; },
                               std::chrono::seconds(10), milliseconds(2));
  if (ended) return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, &status, 0);
  return -1;
}

class Forks : public ::testing::TestWithParam<Via> {};
INSTANTIATE_TEST_SUITE_P(Each, Forks, ::testing::Values(Via::kUnix, Via::kTcp), viaName);

TEST_P(Forks, AChildGetsErrorsAtOnceAndItsParentNoticesNothing) {
  Pair pair(GetParam());
  expectOk(pair.a->send(1, textMessage("before")));
  ASSERT_TRUE(pair.second.waitForMessages(1));
  std::atomic<bool> ran{false};
  EXPECT_EQ(statusOfChild([&] {
              const Error sent = pair.a->send(1, textMessage("of the child"));
              if (sent.text().find("was forked after") == std::string::npos) return 1;
              if (!pair.a->addPeer(infoOf(2, *pair.b))) return 2;
              pair.a->setPeerAddress(1, pair.a->address());
              pair.a->removePeer(1);
              pair.a->losePeer(1, {ErrorCode::kPeerLost, "by the child"});
              pair.a->runAfter(milliseconds(0), [&] { ran = true; });
              if (!pair.a->stats().peers.empty() || pair.a->onLoopThread()) return 3;
              pair.a->close();
              pair.a.reset();
              pair.b.reset();
              return ran ? 4 : 0;
            }),
            0);
  expectOk(pair.a->send(1, textMessage("after")));
  ASSERT_TRUE(pair.second.waitForMessages(2));
  expectOk(pair.b->send(0, textMessage("back")));
  ASSERT_TRUE(pair.first.waitForMessages(1));
  EXPECT_EQ(pair.second.messages()[1].header, "after");
  EXPECT_EQ(statsOf(*pair.a).reconnects, 0U);
  EXPECT_TRUE(pair.first.losses().empty());
  EXPECT_TRUE(pair.second.losses().empty());
}

// A fork at any moment: another thread may hold any lock, and writes on a socket.
TEST_P(Forks, ChildrenOfABusyParentEndAtOnce) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "GCC's address sanitizer forks while another thread holds its allocator's locks";
#endif
  Pair pair(GetParam(), {}, [](Recorder&, Recorder& second) { second.keep = false; });
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> sent{0};
  std::thread sender([&] {
    while (!stop) {
      expectOk(pair.a->send(1, {bytesOf("x"), {newBuffer(200'000)}}));
      ++sent;
    }
  });
  for (int child = 0; child < 20; ++child) {
    EXPECT_EQ(statusOfChild([&] {
                if (!pair.a->send(1, textMessage("of the child"))) return 1;
                pair.a.reset();
                return 0;
              }),
              0);
  }
  stop = true;
  sender.join();
  ASSERT_TRUE(pair.second.waitForMessages(sent));
  EXPECT_EQ(pair.second.messageCount(), sent);
  EXPECT_EQ(statsOf(*pair.a).reconnects, 0U);
  EXPECT_TRUE(pair.second.losses().empty());
}

}  // namespace
}  // namespace weft::transport
