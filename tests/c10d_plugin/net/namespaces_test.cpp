// Groups on several hosts: network namespaces of this machine, with real TCP between them and real
// shared memory inside them.
#include "tests/c10d_plugin/net/namespaces.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "c10d_plugin/net/hosts/gloo_loader.h"
#include "c10d_plugin/net/hosts/make_collectives.h"
#include "tests/c10d_plugin/net/collectives_model.h"
#include "tests/c10d_plugin/net/letters.h"

#include "tests/support/waiting.h"

namespace weft::collectives {
namespace {

using std::chrono::milliseconds;

struct Group {
  std::shared_ptr<EndpointMailbox> mailbox;
  MadeCollectives made;
  Collectives& collectives() { return *made.collectives; }
};

// Ranks per host, e.g. {2, 1, 3}: 0 and 1 on the first, 2 on the second, 3 to 5 on the third.
class Hosts {
 public:
  explicit Hosts(std::vector<int> ranks)
      : ranks_(std::move(ranks)), namespaces_(static_cast<int>(ranks_.size())) {
    for (const int count : ranks_)
      size_ += count;
  }
  const std::string& problem() const { return namespaces_.problem(); }
  const Namespaces& namespaces() const { return namespaces_; }
  int size() const { return size_; }
  int hostOf(int rank) const {
    int host = 0;
    while (rank >= ranks_[static_cast<std::size_t>(host)])
      rank -= ranks_[static_cast<std::size_t>(host++)];
    return host;
  }

  Group join(int rank, KeyValue& store, bool gloo, milliseconds peer_timeout = kPatience) const {
    namespaces_.enter(hostOf(rank));
    setGlooLibrary(gloo ? "c10d_plugin/net/gloo/libweft_gloo.so" : "there-is-none.so");
    Group group;
    group.mailbox = joinAs(rank, size_, store, [&](MailboxOptions& options) {
      options.listen_address = Namespaces::address(hostOf(rank));
      options.heartbeat_interval = milliseconds(200);
      options.peer_timeout = peer_timeout;
    });
    auto made = makeCollectives(group.mailbox, store, soon());
    if (!made.ok()) throw std::runtime_error(made.error().text());
    group.made = std::move(made).value();
    return group;
  }

 private:
  const std::vector<int> ranks_;
  const Namespaces namespaces_;
  int size_ = 0;
};

struct Layout {
  std::vector<int> ranks;
  bool gloo;
};

class BetweenNamespaces : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, BetweenNamespaces,
                         ::testing::Values(Layout{{1, 1}, true}, Layout{{2, 2}, true},
                                           Layout{{2, 2}, false}, Layout{{3, 3}, true},
                                           Layout{{2, 2, 2}, true}, Layout{{2, 1, 3}, true},
                                           Layout{{2, 1, 3}, false}),
                         [](const auto& layout) {
                           std::string name = layout.param.gloo ? "Gloo" : "Messages";
                           for (const int count : layout.param.ranks)
                             name += std::to_string(count);
                           return name;
                         });

TEST_P(BetweenNamespaces, EveryOperationDoesWhatTheModelDoes) {
  if (kSanitized && GetParam().ranks != std::vector{2, 1, 3})
    GTEST_SKIP() << "the uneven hosts are enough for a sanitizer";
  const Hosts hosts(GetParam().ranks);
  if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
  runRanks(hosts.size(), [&](int rank, KeyValue& store) {
    Group group = hosts.join(rank, store, GetParam().gloo);
    EXPECT_TRUE(names({ErrorCode::kOk, group.made.path}, GetParam().gloo ? "Gloo" : "messages"));
    Checker(group.collectives()).everything();
    // Peers of one host by the Unix socket if at all, the others by TCP.
    for (const transport::PeerStats& peer : group.mailbox->stats().peers) {
      if (peer.transport.empty()) continue;
      EXPECT_EQ(peer.transport, hosts.hostOf(peer.rank) == hosts.hostOf(rank) ? "unix" : "tcp");
    }
    meet(store, rank, hosts.size(), "end");
  });
}

TEST(Namespaces, AreHostsOfTheirOwn) {
  const Hosts hosts({2, 2});
  if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
  runRanks(4, [&](int rank, KeyValue& store) {
    const Group group = hosts.join(rank, store, false);
    const std::vector<std::string>& id = group.mailbox->hosts();
    EXPECT_FALSE(id[0].empty());
    EXPECT_EQ(id[0], id[1]);
    EXPECT_EQ(id[2], id[3]);
    EXPECT_NE(id[0], id[2]);
    EXPECT_TRUE(names({ErrorCode::kOk, group.made.path}, "shared memory inside 2 hosts"))
        << group.made.path;
    meet(store, rank, 4, "end");
  });
}

// Resets this process's TCP connections, as a router between the hosts might: what is on its way is
// lost on both sides.
int resetConnections() {
  int reset = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.ss_family != AF_INET) continue;
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    // Past the sanitizers, for whom a socket is its owner's.
    reset += ::syscall(SYS_connect, fd, &nobody, sizeof nobody) == 0 ? 1 : 0;
  }
  return reset;
}

// 1,000 all_reduces of many sizes while connections are reset: nothing is lost, nothing comes
// twice.
TEST(Namespaces, ResetConnectionsLoseNothing) {
  for (const bool gloo : {true, false}) {
    const Hosts hosts({1, 1});
    if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
    runRanks(2, [&](int rank, KeyValue& store) {
      Group group = hosts.join(rank, store, gloo);
      std::atomic<bool> over{false};
      std::atomic<int> resets{0};
      std::thread breaker([&] {
        std::mt19937 random(static_cast<unsigned>(rank));
        while (!over.load()) {
          takes(milliseconds((kSanitized ? 120 : 30) + random() % 100));
          resets.fetch_add(resetConnections());
        }
      });
      const std::vector<std::size_t> sizes{1, 1000, 8000, 9000, 100'000, 1'000'000, 1'500'000};
      std::vector<float> values;
      const int rounds = kSanitized ? 100 : 1000;
      Error error;
      int wrong = 0;
      for (int i = 0; i < rounds && !error; ++i) {
        values.assign(sizes[static_cast<std::size_t>(i) % sizes.size()],
                      static_cast<float>(rank * 1000 + i));
        const Call call{soon(), static_cast<std::uint64_t>(i), Element::kFloat32, Reduction::kSum};
        error = group.collectives().allReduce(call, std::as_writable_bytes(std::span(values)));
        const auto sum = static_cast<float>(1000 + 2 * i);
        wrong += std::count(values.begin(), values.end(), sum) ==
                         static_cast<std::ptrdiff_t>(values.size())
                     ? 0
                     : 1;
      }
      over.store(true);
      breaker.join();
      EXPECT_FALSE(error) << error.text();
      EXPECT_EQ(wrong, 0);
      EXPECT_GT(resets.load(), kSanitized ? 0 : 3);
      const auto stats = group.mailbox->stats();
      ASSERT_EQ(stats.peers.size(), 1U);
      EXPECT_GT(stats.peers[0].reconnects, kSanitized ? 0U : 3U);
      meet(store, rank, 2, "end");
    });
  }
}

// A pulled cable says nothing: it is the missing heartbeats that tell, well before the timeout of
// the operation, and every rank is told of a rank on the other side.
TEST(Namespaces, APulledCableIsTheLossOfTheRanksBehindIt) {
  for (const bool gloo : {true, false}) {
    const Hosts hosts({2, 2});
    if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
    runRanks(4, [&](int rank, KeyValue& store) {
      Group group = hosts.join(rank, store, gloo, milliseconds(3000));
      std::vector<std::byte> data(4'000'000);
      Call call{soon(), 0, Element::kFloat32, Reduction::kSum};
      EXPECT_FALSE(group.collectives().allReduce(call, data));
      meet(store, rank, 4, "before");
      if (rank == 0) hosts.namespaces().pullCable(1);
      meet(store, rank, 4, "pulled");
      ++call.sequence;
      const Error error = group.collectives().allReduce(call, data);
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.text();
      const bool first_host = rank < 2;
      EXPECT_TRUE(names(error, first_host ? "rank 2" : "rank 0") ||
                  names(error, first_host ? "rank 3" : "rank 1"))
          << "rank " << rank << ": " << error.text();
      EXPECT_LT(std::chrono::steady_clock::now(), call.deadline);
      meet(store, rank, 4, "end");
    });
  }
}

}  // namespace
}  // namespace weft::collectives
