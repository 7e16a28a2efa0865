// Shared memory between endpoints, and what happens to it when one of them dies. Real processes
// are forked before any thread of this one is started.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <thread>

#include "tests/transport/payload.h"
#include "tests/transport/pipe_lines.h"
#include "tests/transport/recorder.h"
#include "transport/base/log.h"

#include "tests/support/waiting.h"

namespace weft::transport {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A message whose header says what its buffers hold.
Message checkedMessage(const std::vector<std::size_t>& sizes, unsigned seed) {
  Message message;
  for (const std::size_t size : sizes) {
    message.buffers.push_back(randomBuffer(size, seed++));
    const std::uint64_t sum = checksum(message.buffers.back());
    const auto* bytes = reinterpret_cast<const std::byte*>(&sum);
    message.header.insert(message.header.end(), bytes, bytes + 8);
  }
  return message;
}

bool isRight(const Recorder::Received& received) {
  if (received.header.size() != received.buffers.size() * 8) return false;
  for (std::size_t i = 0; i < received.buffers.size(); ++i) {
    std::uint64_t sum = 0;
    std::memcpy(&sum, received.header.data() + 8 * i, 8);
    if (sum != checksum(received.buffers[i])) return false;
  }
  return true;
}

// A slow machine checks sums for long on the loop thread; nobody is to be lost for that.
EndpointOptions patientOptions(std::int32_t rank) {
  EndpointOptions options = optionsFor(rank);
  options.peer_timeout = std::chrono::hours(1);
  return options;
}

int mappedArenas() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:weft-arena") != std::string::npos ? 1 : 0;
  return count;
}

// A process of its own, with an endpoint of rank 1. `work` runs in it once both know each other.
class Child {
 public:
  using Work = std::function<void(Endpoint&, Recorder&)>;
  explicit Child(const Work& work) {
    EXPECT_EQ(::pipe(up_), 0);
    EXPECT_EQ(::pipe(down_), 0);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::close(down_[1]);
    Recorder recorder;
    const auto endpoint = openEndpoint(patientOptions(1), recorder);
    writeLine(up_[1], endpoint->address());
    expectOk(endpoint->addPeer({0, "worker0", readLine(down_[0])}));
    work(*endpoint, recorder);
    readLine(down_[0]);  // until the parent ends
    endpoint->close();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ~Child() {
    if (!ended_) end(SIGKILL);
    for (const int fd : {up_[0], up_[1], down_[0], down_[1]})
      if (fd >= 0) ::close(fd);
  }
  void meet(Endpoint& endpoint) {
    expectOk(endpoint.addPeer({1, "worker1", readLine(up_[0])}));
    writeLine(down_[1], endpoint.address());
  }
  // Its exit status; 0: all it expected was so.
  int end(int signal = 0) {
    if (signal != 0) ::kill(pid_, signal);
    ::close(std::exchange(down_[1], -1));
    int status = -1;
    ::waitpid(pid_, &status, 0);
    ended_ = true;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int up_[2] = {-1, -1};
  int down_[2] = {-1, -1};
  bool ended_ = false;
};

// Sends `count` messages of mixed sizes from several threads.
void sendMix(Endpoint& endpoint, std::int32_t to, int threads, int count, unsigned seed) {
  std::vector<std::thread> senders;
  senders.reserve(static_cast<std::size_t>(threads));
  for (int t = 0; t < threads; ++t) {
    senders.emplace_back([&endpoint, to, count, seed = seed + static_cast<unsigned>(t)] {
      std::mt19937 random(seed);
      const std::size_t kinds[] = {0, 1, 5000, 32'767, 32'768, 65'537, 300'000, kMiB, 5 * kMiB + 3};
      for (int i = 0; i < count; ++i) {
        std::vector<std::size_t> sizes(random() % 6);
        for (std::size_t& size : sizes)
          size = kinds[random() % 9];
        expectOk(endpoint.send(to, checkedMessage(sizes, seed), kPatience));
      }
    });
  }
  for (std::thread& sender : senders)
    sender.join();
}

TEST(ArenaLink, EveryByteArrivesBothWaysBetweenProcesses) {
  constexpr int kThreads = 4;
  constexpr int kEach = 30;
  constexpr std::size_t kAll = kThreads * kEach + 1;
  Child child([&](Endpoint& endpoint, Recorder& recorder) {
    std::atomic<int> wrong{0};
    EXPECT_TRUE(recorder.waitForMessages(1));
    warmUp(endpoint, 0);
    sendMix(endpoint, 0, kThreads, kEach, 100);
    expectOk(endpoint.send(0, checkedMessage({256 * kMiB, 0, 70'000}, 5), kPatience));
    expectOk(endpoint.send(0, textMessage("done")));
    EXPECT_TRUE(eventually([&] {
      const auto messages = recorder.messages();
      return !messages.empty() && messages.back().header == "done";
    }));
    for (const auto& received : recorder.messages()) {
      if (received.header != "warm" && received.header != "done" && !isRight(received)) ++wrong;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(statsOf(endpoint).arena_bytes_sent, 256 * kMiB);
  });
  std::atomic<int> wrong{0};
  std::atomic<std::size_t> checked{0};
  std::atomic<bool> done{false};
  Recorder recorder;
  recorder.keep = false;
  recorder.react = [&](const Recorder::Received& received) {
    if (received.header == "done") {
      done = true;
    } else if (received.header != "warm") {
      ++checked;
      if (!isRight(received)) ++wrong;
    }
  };
  const auto endpoint = openEndpoint(patientOptions(0), recorder);
  child.meet(*endpoint);
  warmUp(*endpoint, 1);
  sendMix(*endpoint, 1, kThreads, kEach, 200);
  expectOk(endpoint->send(1, checkedMessage({256 * kMiB, 1}, 6), kPatience));
  expectOk(endpoint->send(1, textMessage("done")));
  EXPECT_TRUE(eventually([&] { return done.load(); }));
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(checked, kAll);
  EXPECT_GT(statsOf(*endpoint).arena_bytes_sent, 256 * kMiB);
  EXPECT_EQ(child.end(), 0);
}

TEST(ArenaLink, BuffersAreTheReceiversOwn) {
  Pair pair(Via::kUnix);
  const std::size_t before = warmUp(*pair.a, 1);
  ASSERT_TRUE(pair.second.waitForMessages(before));
  const OwnedBuffer mine = randomBuffer(kMiB, 1);
  const std::uint64_t sum = checksum(mine);
  expectOk(pair.a->send(1, {bytesOf("x"), {mine, mine}}));
  ASSERT_TRUE(pair.second.waitForMessages(before + 1));
  const auto received = pair.second.messages().back();
  ASSERT_EQ(received.buffers.size(), 2U);
  std::memset(received.buffers[0].data, 0, kMiB);
  EXPECT_EQ(checksum(mine), sum);
  EXPECT_EQ(checksum(received.buffers[1]), sum);
  EXPECT_GE(statsOf(*pair.a).arena_bytes_sent, 2 * kMiB);
  EXPECT_TRUE(
      eventually([&] { return statsOf(*pair.b).bytes_received == statsOf(*pair.a).bytes_sent; }));
  EXPECT_EQ(statsOf(*pair.a).arena_fallbacks, 0U);
}

TEST(ArenaLink, AFullArenaFallsBackToTheSocketAndRecovers) {
  std::mutex mutex;
  std::vector<OwnedBuffer> held;
  std::atomic<int> wrong{0};
  const auto adjust = [](EndpointOptions& options) { options.arena.bytes = 4 * kMiB; };
  Pair pair(Via::kUnix, adjust, [&](Recorder&, Recorder& second) {
    second.keep = false;
    second.react = [&](const Recorder::Received& received) {
      if (received.header == "warm") return;
      if (!isRight(received)) ++wrong;
      const std::lock_guard<std::mutex> lock(mutex);
      held.insert(held.end(), received.buffers.begin(), received.buffers.end());
    };
  });
  std::size_t sent = warmUp(*pair.a, 1);
  for (unsigned i = 0; i < 12; ++i, ++sent)
    expectOk(pair.a->send(1, checkedMessage({kMiB, 100}, i)));
  ASSERT_TRUE(pair.second.waitForMessages(sent));
  const PeerStats full = statsOf(*pair.a);
  EXPECT_GE(full.arena_fallbacks, 8U);
  EXPECT_LE(full.arena_fallbacks, 10U);
  // One that is larger than the arena goes as well, beside one that would fit.
  expectOk(pair.a->send(1, checkedMessage({9 * kMiB, 70'000}, 77)));
  ASSERT_TRUE(pair.second.waitForMessages(++sent));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    held.clear();
  }
  const PeerStats before = statsOf(*pair.a);
  for (unsigned i = 0; i < 3; ++i, ++sent)
    expectOk(pair.a->send(1, checkedMessage({kMiB}, i)));
  ASSERT_TRUE(pair.second.waitForMessages(sent));
  EXPECT_EQ(statsOf(*pair.a).arena_fallbacks, before.arena_fallbacks);
  EXPECT_EQ(statsOf(*pair.a).arena_bytes_sent, before.arena_bytes_sent + 3 * kMiB);
  EXPECT_EQ(wrong, 0);
}

TEST(ArenaLink, OverTcpOrSwitchedOffThereIsNone) {
  const auto expectNone = [](Pair& pair) {
    for (unsigned i = 0; i < 5; ++i) {
      expectOk(pair.a->send(1, checkedMessage({kMiB}, i)));
      ASSERT_TRUE(pair.second.waitForMessages(i + 1));
    }
    for (const auto& received : pair.second.messages())
      EXPECT_TRUE(isRight(received));
    EXPECT_EQ(statsOf(*pair.a).arena_bytes_sent, 0U);
    EXPECT_EQ(mappedArenas(), 0);
  };
  Pair tcp(Via::kTcp);
  expectNone(tcp);
  EXPECT_EQ(statsOf(*tcp.a).arena_fallbacks, 0U);
  Pair off(Via::kUnix, [](EndpointOptions& options) { options.arena.enabled = false; });
  expectNone(off);
}

TEST(ArenaLink, APeerThatTakesNoneGetsAllThroughTheSocket) {
  Pair pair(Via::kUnix,
            [](EndpointOptions& options) { options.arena.enabled = options.rank == 0; });
  std::size_t sent = 0;
  EXPECT_TRUE(eventually([&] {
    expectOk(pair.a->send(1, checkedMessage({kMiB}, 1)));
    ++sent;
    return statsOf(*pair.a).arena_fallbacks > 0;
  }));
  ASSERT_TRUE(pair.second.waitForMessages(sent));
  for (const auto& received : pair.second.messages())
    EXPECT_TRUE(isRight(received));
  EXPECT_EQ(statsOf(*pair.a).arena_bytes_sent, 0U);
  EXPECT_EQ(mappedArenas(), 0);
  EXPECT_TRUE(pair.first.losses().empty());
}

TEST(ArenaLink, WithoutMemoryForItTheSocketServes) {
  // Growing a file beyond the limit would raise SIGXFSZ.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = kMiB;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  setLogLevel(LogLevel::kError);
  {
    Pair pair(Via::kUnix);
    std::size_t sent = 0;
    EXPECT_TRUE(eventually([&] {
      expectOk(pair.a->send(1, checkedMessage({kMiB}, 1)));
      ++sent;
      return statsOf(*pair.a).arena_fallbacks > 0;
    }));
    EXPECT_TRUE(pair.second.waitForMessages(sent));
  }
  setLogLevel(LogLevel::kWarning);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
}

TEST(ArenaLink, BuffersOfAKilledSenderStayReadable) {
  Child child([](Endpoint& endpoint, Recorder&) {
    warmUp(endpoint, 0);
    for (unsigned i = 0; i < 5; ++i)
      expectOk(endpoint.send(0, checkedMessage({3 * kMiB, 100'000}, i)));
    expectOk(endpoint.send(0, textMessage("all")));
  });
  auto recorder = std::make_unique<Recorder>();
  auto endpoint = openEndpoint(patientOptions(0), *recorder);
  child.meet(*endpoint);
  ASSERT_TRUE(eventually([&] {
    const auto messages = recorder->messages();
    return !messages.empty() && messages.back().header == "all";
  }));
  child.end(SIGKILL);
  ASSERT_TRUE(recorder->waitForLosses(1));
  std::vector<Recorder::Received> held = recorder->messages();
  endpoint.reset();
  recorder.reset();
  EXPECT_EQ(mappedArenas(), 1);
  int right = 0;
  for (const Recorder::Received& received : held) {
    if (received.header == "warm" || received.header == "all") continue;
    EXPECT_TRUE(isRight(received));
    std::memset(received.buffers[0].data, 1, received.buffers[0].size);
    ++right;
  }
  EXPECT_EQ(right, 5);
  held.clear();
  EXPECT_EQ(mappedArenas(), 0);  // the last user has let it go
}

TEST(ArenaLink, AKilledReceiverFreesTheSendersMemory) {
  Child child([](Endpoint&, Recorder&) {});
  Recorder recorder;
  const auto endpoint = openEndpoint(patientOptions(0), recorder);
  child.meet(*endpoint);
  warmUp(*endpoint, 1);
  // It keeps all it got, and much is on its way.
  for (unsigned i = 0; i < 20; ++i)
    expectOk(endpoint->send(1, checkedMessage({kMiB}, i)));
  EXPECT_EQ(mappedArenas(), 1);
  child.end(SIGKILL);
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_EQ(mappedArenas(), 0);
  EXPECT_EQ(endpoint->send(1, checkedMessage({kMiB}, 1)).code(), ErrorCode::kPeerLost);
}

TEST(ArenaLink, AKilledReceiverIsToldWhileManyThreadsSendToIt) {
  Child child([](Endpoint&, Recorder&) {});
  Recorder recorder;
  const auto endpoint = openEndpoint(patientOptions(0), recorder);
  child.meet(*endpoint);
  warmUp(*endpoint, 1);
  std::vector<std::thread> senders;
  senders.reserve(4);
  for (int t = 0; t < 4; ++t) {
    senders.emplace_back([&] {
      const OwnedBuffer buffer = newBuffer(2 * kMiB);
      while (!endpoint->send(1, {bytesOf("x"), {buffer, buffer}}, kPatience)) {
      }
    });
  }
  letOthersBlock(std::chrono::milliseconds(50));
  child.end(SIGKILL);
  for (std::thread& sender : senders)
    sender.join();
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_EQ(mappedArenas(), 0);
}

}  // namespace
}  // namespace weft::transport
