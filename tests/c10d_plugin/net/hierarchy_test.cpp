// The hierarchy of shared memory inside hosts and messages between them, on hosts that are only
// said to be several; tests/c10d_plugin/net/namespaces_test.cpp has real ones.
#include "c10d_plugin/net/hosts/hierarchical_collectives.h"

#include <array>
#include <numeric>

#include "c10d_plugin/net/messages/message_collectives.h"
#include "c10d_plugin/shm/shm_collectives.h"
#include "tests/c10d_plugin/net/collectives_model.h"
#include "tests/c10d_plugin/net/letters.h"

#include "tests/support/waiting.h"

namespace weft::collectives {
namespace {

using std::chrono::milliseconds;

std::vector<int> ranksOf(const HostLayout& layout) {
  std::vector<int> all;
  for (const auto& host : layout.hosts)
    all.insert(all.end(), host.begin(), host.end());
  std::sort(all.begin(), all.end());
  return all;
}

// By what the ranks of a host meet: by messages where one is alone, or shares no memory.
enum class Inside : std::uint8_t { kSharedMemory, kMessages };

// "AAB": ranks 0 and 1 on one host, rank 2 on another.
std::unique_ptr<HierarchicalCollectives> join(const std::string& hosts, int rank, KeyValue& store,
                                              const std::filesystem::path& folder,
                                              Inside by = Inside::kSharedMemory) {
  std::vector<std::string> identity;
  for (const char host : hosts)
    identity.emplace_back(1, host);
  const HostLayout layout = HostLayout::of(identity, rank);
  const std::shared_ptr<EndpointMailbox> box =
      joinAs(rank, static_cast<int>(hosts.size()), store,
             [](MailboxOptions& options) { options.unix_socket = false; });
  HierarchySteps::Parts parts;
  parts.mailbox = box;
  parts.flat = std::make_unique<MessageCollectives>(box, ranksOf(layout), 0);
  if (layout.local < layout.fewest())
    parts.across = std::make_unique<MessageCollectives>(box, layout.across(layout.local), 2);
  if (by == Inside::kMessages) {
    parts.inside = std::make_unique<MessageCollectives>(box, layout.here(), 1);
    return std::make_unique<HierarchicalCollectives>(layout, std::move(parts));
  }
  FolderKeyValue here(folder / std::to_string(layout.host));
  auto inside = ShmCollectives::join({}, box->key(), here, layout.local,
                                     static_cast<int>(layout.here().size()), soon());
  if (!inside.ok()) throw std::runtime_error(inside.error().text());
  parts.inside = std::move(inside).value();
  return std::make_unique<HierarchicalCollectives>(layout, std::move(parts));
}

class Hosts : public ::testing::TestWithParam<const char*> {
 protected:
  static void run(const std::string& hosts,
                  const std::function<void(int, KeyValue&, HierarchicalCollectives&)>& body,
                  const std::set<int>& killed = {}) {
    const TemporaryFolder folder;
    runRanks(
        static_cast<int>(hosts.size()),
        [&](int rank, KeyValue& store) {
          const auto collectives = join(hosts, rank, store, folder.path());
          body(rank, store, *collectives);
        },
        killed);
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, Hosts, ::testing::Values("AABB", "AABCCC", "ABAB", "ABBB"),
                         [](const auto& layout) { return std::string(layout.param); });

TEST_P(Hosts, DoWhatTheModelDoes) {
  const std::string layout = GetParam();
  if (kSanitized && layout != "AABCCC" && layout != "ABAB")
    GTEST_SKIP() << "these two are enough for a sanitizer";
  run(GetParam(), [](int, KeyValue&, HierarchicalCollectives& collectives) {
    Checker(collectives).everything();
  });
}

// All ranks give the largest value, which is the average then; the sum of a host's has no place.
TEST_P(Hosts, AverageWhereASumDoesNotFitTheType) {
  run(GetParam(), [](int rank, KeyValue&, HierarchicalCollectives& collectives) {
    std::uint64_t sequence = 0;
    for (const Element element : {Element::kInt16, Element::kFloat16}) {
      const std::uint16_t largest = element == Element::kInt16 ? 0x7FFF : 0x7BFF;
      const auto call = [&] { return Call{soon(), sequence++, element, Reduction::kAverage}; };
      const auto check = [&](const Error& error, const std::vector<std::uint16_t>& result) {
        EXPECT_FALSE(error) << error.text();
        EXPECT_TRUE(std::ranges::all_of(result, [&](auto each) { return each == largest; }))
            << toString(element) << " " << result.front();
      };
      std::vector<std::uint16_t> data(70'001, largest);
      check(collectives.allReduce(call(), std::as_writable_bytes(std::span(data))), data);
      const Error reduced = collectives.reduce(call(), std::as_writable_bytes(std::span(data)), 1);
      if (rank == 1) check(reduced, data);
      std::vector<std::uint16_t> part(1'001);
      const std::vector<std::uint16_t> input(1'001, largest);
      const std::vector<ConstBytes> inputs(static_cast<std::size_t>(collectives.size()),
                                           std::as_bytes(std::span(input)));
      check(collectives.reduceScatter(call(), inputs, std::as_writable_bytes(std::span(part))),
            part);
    }
  });
}

// All but the last rank wait in a barrier, each for the rank in `wanted`.
void expectWaits(const std::string& hosts, Inside by, const std::vector<int>& wanted) {
  const TemporaryFolder folder;
  const int size = static_cast<int>(hosts.size());
  runRanks(size, [&](int rank, KeyValue& store) {
    const auto collectives = join(hosts, rank, store, folder.path(), by);
    if (rank == size - 1) {
      meet(store, rank, size, "asked");
      EXPECT_FALSE(collectives->barrier({soon(), 0}));
      return;
    }
    const int other = wanted[static_cast<std::size_t>(rank)];
    std::thread asks([&] {
      const std::vector<int> awaited{other};
      EXPECT_TRUE(waitUntil([&] { return collectives->awaited() == awaited; }, kPatience));
      letOthersBlock(milliseconds(100));  // far more than the rest of the barrier takes
      meet(store, rank, size, "asked");
    });
    const auto began = std::chrono::steady_clock::now();
    EXPECT_FALSE(collectives->barrier({soon(), 0}));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    asks.join();
    EXPECT_EQ(collectives->awaited(), std::vector<int>());
    const std::vector<double> waited = collectives->waited();
    ASSERT_EQ(waited.size(), hosts.size());
    EXPECT_GT(waited[static_cast<std::size_t>(other)], 0.04);
    EXPECT_LE(std::accumulate(waited.begin(), waited.end(), 0.0), took.count());
  });
}

TEST(HierarchicalCollectives, TellsForWhichRanksItWaits) {
  // Rank 1 waits inside its host. Rank 0 is past that, and waits for the other host's first.
  for (const Inside by : {Inside::kSharedMemory, Inside::kMessages})
    expectWaits("ABAB", by, {1, 3, 0});
}

TEST(HierarchicalCollectives, TellsForWhichRanksOneAloneOnItsHostWaits) {
  expectWaits("ABB", Inside::kMessages, {1, 2});
  expectWaits("ABAA", Inside::kMessages, {3, 0, 3});
}

TEST(HostLayout, GroupsRanksByHost) {
  const HostLayout layout = HostLayout::of({"x", "y", "x", "", "y", "", "y"}, 4);
  EXPECT_EQ(layout.hosts, (std::vector<std::vector<int>>{{0, 2}, {1, 4, 6}, {3}, {5}}));
  EXPECT_EQ(layout.host, 1);
  EXPECT_EQ(layout.local, 1);
  EXPECT_EQ(layout.hostOf(6), 1);
  EXPECT_EQ(layout.localOf(6), 2);
  EXPECT_EQ(layout.fewest(), 1);
  EXPECT_EQ(layout.most(), 3);
  EXPECT_EQ(layout.across(0), (std::vector<int>{0, 1, 3, 5}));
}

class HostFailures : public Hosts {};

// Whoever dies, a leader or not: all others fail, within the time of a death, and know of whom.
TEST_F(HostFailures, ADeadRankEndsAll) {
  for (const int victim : {0, 3}) {
    run("AABB",
        [victim](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
          std::vector<std::byte> data(1 << 20);
          Call call{soon(), 0, Element::kFloat32, Reduction::kSum};
          const Error met = collectives.barrier(call);
          EXPECT_FALSE(met) << met.text();
          meet(store, rank, 4, "begun");  // a death would end the barrier of those still in it
          if (rank == victim) die();
          const auto began = std::chrono::steady_clock::now();
          ++call.sequence;
          const Error error = collectives.allReduce(call, data);
          EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.text();
          EXPECT_TRUE(names(error, "rank " + std::to_string(victim))) << error.text();
          EXPECT_LT(std::chrono::steady_clock::now() - began, kPatience / 2);
          EXPECT_TRUE(collectives.barrier(call));
          say(store, "done" + std::to_string(rank), "");
          for (int other = 0; other < 4; ++other)
            if (other != victim) hear(store, "done" + std::to_string(other));
        },
        {victim});
  }
}

TEST_F(HostFailures, ARankThatDoesNotComeIsNamed) {
  run("AABB", [](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
    if (rank != 3) {
      std::vector<std::byte> data(400);
      const Error error = collectives.allReduce(
          {soon(milliseconds(400)), 0, Element::kFloat32, Reduction::kSum}, data);
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.text();
    }
    meet(store, rank, 4, "end");
  });
}

TEST_F(HostFailures, ADifferenceInsideAHostEndsAll) {
  run("AABB", [](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
    std::vector<std::byte> data(rank == 3 ? 800 : 400);
    const Error error =
        collectives.allReduce({soon(), 0, Element::kFloat32, Reduction::kSum}, data);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
    EXPECT_TRUE(names(error, "800") && names(error, "400")) << error.text();
    meet(store, rank, 4, "end");
  });
}

TEST_F(HostFailures, ADifferenceBetweenHostsEndsAll) {
  run("AABB", [](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
    std::vector<std::byte> data(rank > 1 ? 800 : 400);
    const Error error =
        collectives.allReduce({soon(), 0, Element::kFloat32, Reduction::kSum}, data);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
    EXPECT_TRUE(names(error, "800") && names(error, "400")) << error.text();
    meet(store, rank, 4, "end");
  });
}

// An operation from rank to rank on one rank, one in steps on the others, which it would never
// meet.
TEST_F(HostFailures, OperationsThatTakeDifferentWaysEndAll) {
  const auto average = [](HierarchicalCollectives& collectives, Bytes data, Element element) {
    return collectives.allReduce({soon(), 0, element, Reduction::kAverage}, data);
  };
  const auto exchange = [](HierarchicalCollectives& collectives, Bytes data) {
    std::vector<ConstBytes> in(4, ConstBytes(data).first(8));
    std::vector<Bytes> out;
    for (std::size_t place = 0; place < in.size(); ++place)
      out.push_back(data.subspan(8 + 8 * place, 8));
    return collectives.allToAll({soon(), 0, {}, {}}, in, out);
  };
  for (const bool exchanges : {true, false}) {
    for (const int alone : {0, 1, 3}) {
      run("AABB", [&](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
        std::vector<std::byte> data(400);
        const auto began = std::chrono::steady_clock::now();
        const Error error = rank != alone ? average(collectives, data, Element::kFloat32)
                            : exchanges   ? exchange(collectives, data)
                                          : average(collectives, data, Element::kFloat16);
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
        EXPECT_TRUE(names(error, exchanges ? "called all_to_all" : "of float16 by average"))
            << error.text();
        EXPECT_TRUE(names(error, "of float32 by average")) << error.text();
        EXPECT_LT(std::chrono::steady_clock::now() - began, kPatience / 2);
        meet(store, rank, 4, "end");
      });
    }
  }
}

// One host's data are one share, the other's two of the same size.
TEST_F(HostFailures, ADifferenceInTheNumberOfSharesEndsAll) {
  for (const bool all : {true, false}) {
    run("AABB", [&](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
      std::vector<std::byte> data(rank > 1 ? 120'000 : 60'000);
      const Call call{soon(), 0, Element::kFloat32, Reduction::kSum};
      Error error = all ? collectives.allReduce(call, data) : collectives.reduce(call, data, 0);
      // Whose part was over may learn of it in the next operation.
      if (!error) error = collectives.barrier({soon(), 1, {}, {}});
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
      meet(store, rank, 4, "end");
    });
  }
}

// The sums of all sizes are equal on all ranks, and on each host.
TEST_F(HostFailures, PartsOfOtherSizesInAReduceScatterEndAll) {
  run("AABB", [](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
    std::vector<std::byte> data(800);
    const std::array<std::size_t, 4> sizes = rank % 2 == 0
                                                 ? std::array<std::size_t, 4>{8, 8, 24, 8}
                                                 : std::array<std::size_t, 4>{24, 8, 8, 8};
    std::vector<ConstBytes> parts;
    for (const std::size_t size : sizes)
      parts.push_back(ConstBytes(data).first(size));
    const Error error =
        collectives.reduceScatter({soon(), 0, Element::kFloat32, Reduction::kSum}, parts,
                                  Bytes(data).subspan(400, sizes[static_cast<std::size_t>(rank)]));
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
    meet(store, rank, 4, "end");
  });
}

TEST_F(HostFailures, AReduceToAnotherRootEndsAll) {
  run("AABB", [](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
    std::vector<std::byte> data(400);
    const Call call{soon(), 0, Element::kFloat32, Reduction::kSum};
    Error error = collectives.reduce(call, data, rank == 3 ? 2 : 3);
    // Whose part was over may learn of it in the next operation.
    if (!error) error = collectives.barrier({soon(), 1, {}, {}});
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
    meet(store, rank, 4, "end");
  });
}

TEST_F(HostFailures, ABroadcastFromAnotherRootEndsAll) {
  using Roots = std::vector<int>;
  struct Case {
    Roots first, second;  // by rank
  };
  // The hosts name roots of one index; then roots of which each host sends to the other's step of
  // another operation.
  const std::vector<Case> cases{{{0, 0, 2, 2}, {0, 0, 0, 0}}, {{0, 0, 1, 1}, {1, 1, 0, 0}}};
  for (const Case& one : cases) {
    run("AABB", [&](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
      std::vector<std::byte> data(400);
      const auto at = static_cast<std::size_t>(rank);
      Error error = collectives.broadcast({soon(), 0, {}, {}}, data, one.first[at]);
      if (!error) error = collectives.broadcast({soon(), 1, {}, {}}, data, one.second[at]);
      if (!error) error = collectives.barrier({soon(), 2, {}, {}});
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
      meet(store, rank, 4, "end");
    });
  }
}

// On one host, so that the ranks with one index meet, with equal data.
TEST_F(HostFailures, AReduceToAnotherRootOfAHostEndsAll) {
  run("AABB", [](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
    std::vector<std::byte> data(400);
    const Call call{soon(), 0, Element::kFloat32, Reduction::kSum};
    Error error = collectives.reduce(call, data, rank < 2 ? 0 : 1);
    if (!error) error = collectives.barrier({soon(), 1, {}, {}});
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
    meet(store, rank, 4, "end");
  });
}

TEST_F(HostFailures, AbortFreesThoseWhoWait) {
  run("AABB", [](int rank, KeyValue& store, HierarchicalCollectives& collectives) {
    EXPECT_FALSE(collectives.barrier({soon(), 0, {}, {}}));
    if (rank == 3) {
      letOthersBlock(milliseconds(50));
      collectives.abort({ErrorCode::kShutdown, "aborted by hand"});
    } else {
      const Error error = collectives.barrier({soon(), 1, {}, {}});
      EXPECT_TRUE(names(error, "aborted by hand")) << error.text();
    }
    meet(store, rank, 4, "end");
  });
}

}  // namespace
}  // namespace weft::collectives
