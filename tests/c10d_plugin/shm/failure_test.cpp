// What goes wrong: ranks that die, do not come, differ, lie or leave. In real processes; every wait
// is bounded, and no rank that lives may hang.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c10d_plugin/shm/segment/handover.h"
#include "c10d_plugin/store/all_gather.h"
#include "tests/c10d_plugin/shm/exercise.h"

#include "tests/support/waiting.h"

namespace weft::collectives::testing {
namespace {

bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "'%s' does not contain '%s'\n", text.c_str(), part.c_str());
  return false;
}

// What a body returns: 0 when all conditions held, else which failed first.
class Verdict {
 public:
  Verdict& require(bool condition) {
    ++number_;
    if (!condition && failed_ == 0) failed_ = number_;
    return *this;
  }
  operator int() const { return failed_; }  // NOLINT(google-explicit-constructor)

 private:
  int number_ = 0;
  int failed_ = 0;
};

int exitOf(Children& children, std::size_t rank) { return children.wait(rank, seconds(60)); }

enum class Dies { kBefore, kBetweenSmall, kBetweenLarge, kAnywhere };

class DeadRank : public ::testing::TestWithParam<Dies> {};

// Rank 1 of 3 is killed; the others learn it within a second, by its name, and so does all that
// they try later.
TEST_P(DeadRank, IsNamedToAllSurvivors) {
  const Dies when = GetParam();
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 3, {}, [&](Collectives& group) {
    const bool large = when == Dies::kBetweenLarge || when == Dies::kAnywhere;
    std::vector<std::byte> data(large ? 20 << 20 : 64);
    std::uint64_t sequence = 0;
    const auto once = [&] {
      return group.allReduce({in(seconds(30)), sequence++, Element::kFloat32, Reduction::kSum},
                             data);
    };
    if (group.rank() == 1) {
      if (when == Dies::kAnywhere) {
        // At a moment of somebody else's choosing, as often as not within an operation.
        std::thread([] {
          takes(milliseconds(35));
          ::kill(::getpid(), SIGKILL);
        }).detach();
        while (true)
          static_cast<void>(once());
      }
      if (when != Dies::kBefore) static_cast<void>(once());
      ::kill(::getpid(), SIGKILL);
    }
    const auto began = Clock::now();
    auto last_success = began;
    Error error;
    while (!(error = once()))
      last_success = Clock::now();
    Verdict verdict;
    verdict.require(error.code() == ErrorCode::kPeerLost)
        .require(contains(error.text(), "rank 1 died"))
        .require(Clock::now() - last_success < seconds(5));  // generous: the machine may be busy
    const Error later = group.barrier({in(seconds(30)), sequence++});
    return static_cast<int>(verdict.require(later.code() == ErrorCode::kPeerLost)
                                .require(later.text() == error.text()));
  });
  EXPECT_EQ(exitOf(children, 0), 0);
  EXPECT_EQ(exitOf(children, 1), 128 + SIGKILL);
  EXPECT_EQ(exitOf(children, 2), 0);
}

INSTANTIATE_TEST_SUITE_P(When, DeadRank,
                         ::testing::Values(Dies::kBefore, Dies::kBetweenSmall, Dies::kBetweenLarge,
                                           Dies::kAnywhere));

// At moments of chance: while the group is made, in any round of a long operation, between two.
TEST(Failures, ARankMayDieAtAnyMoment) {
  const std::uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int attempt = 0; attempt < 8; ++attempt) {
    const milliseconds delay(random() % 40);
    const auto victim = static_cast<std::size_t>(random() % 3);
    const TemporaryFolder folder;
    Children children;
    for (int rank = 0; rank < 3; ++rank) {
      children.start([&, rank] {
        FolderStore store(folder.path());
        auto joined = ShmCollectives::join({}, groupKey(), store, rank, 3, in(seconds(3)));
        const auto problem = firstProblem(store, "joined", joined.ok() ? Error() : joined.error(),
                                          rank, {0, 1, 2}, in(seconds(3)));
        if (!problem.ok() || !problem.value().empty()) return 0;
        std::vector<std::byte> data(3 << 20);
        for (std::uint64_t sequence = 0;; ++sequence) {
          const Call call{in(seconds(30)), sequence, Element::kFloat32, Reduction::kSum};
          const Error error = joined.value()->allReduce(call, data);
          if (!error) continue;
          const std::string name = "rank " + std::to_string(victim) + " died";
          return error.code() == ErrorCode::kPeerLost && contains(error.text(), name) ? 0 : 1;
        }
      });
    }
    takes(delay);
    children.kill(victim);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const int status = exitOf(children, rank);
      EXPECT_EQ(status, rank == victim ? 128 + SIGKILL : 0)
          << "seed " << seed << " attempt " << attempt;
    }
  }
}

TEST(Failures, ARankThatWaitsLeavesTheProcessorAlone) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 2, {}, [&](Collectives& group) {
    if (group.barrier({in(seconds(30)), 0})) return 1;
    if (group.rank() == 1) takes(milliseconds(1500));
    const std::clock_t began = std::clock();  // processor time, not the wall's
    if (group.barrier({in(seconds(30)), 1})) return 2;
    return std::clock() - began < CLOCKS_PER_SEC / 20 ? 0 : 3;
  });
  EXPECT_EQ(exitOf(children, 0), 0);
  EXPECT_EQ(exitOf(children, 1), 0);
}

// The child that a data loader forks has copies of all descriptors, and outlives its parent.
TEST(Failures, AForkedChildDoesNotHideItsParentsDeath) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 2, {}, [&](Collectives& group) {
    if (group.rank() == 1) {
      if (::fork() == 0) {
        takes(seconds(8));
        ::_exit(0);
      }
      ::kill(::getpid(), SIGKILL);
    }
    const auto began = Clock::now();
    const Error error = group.barrier({in(seconds(30)), 0});
    return static_cast<int>(Verdict()
                                .require(contains(error.text(), "rank 1 died"))
                                .require(Clock::now() - began < seconds(5)));
  });
  EXPECT_EQ(exitOf(children, 0), 0);
}

TEST(Failures, AForkedChildOfARankThatExitsHarmsNobody) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 2, {}, [&](Collectives& group) {
    Exercise exercise(group, 1);
    exercise.anything(1000);
    Children own;
    own.start([] { return 0; });
    Verdict verdict;
    verdict.require(own.wait(0, seconds(10)) == 0);
    for (int i = 0; i < 20; ++i)
      exercise.anything(1000);
    // Long enough that the other side asks whether this one lives.
    if (group.rank() == 0) takes(milliseconds(500));
    exercise.barrier();
    return static_cast<int>(verdict.require(exercise.failures() == 0));
  });
  EXPECT_EQ(exitOf(children, 0), 0);
  EXPECT_EQ(exitOf(children, 1), 0);
}

TEST(Failures, ATimeoutNamesThoseWhoDidNotCome) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 4, {}, [&](Collectives& group) {
    Exercise exercise(group, 1);
    exercise.barrier();
    Verdict verdict;
    verdict.require(exercise.failures() == 0);
    if (group.rank() == 1 || group.rank() == 3) {
      takes(seconds(5));  // longer than the others wait
    }
    std::vector<std::byte> data(16);
    const Error error =
        group.allReduce({in(milliseconds(2000)), 1, Element::kInt32, Reduction::kMax}, data);
    verdict.require(error.code() == ErrorCode::kTimeout)
        .require(contains(error.text(), "ranks 1, 3 did not come"))
        .require(contains(error.text(), "all_reduce of 16 bytes of int32 by max (operation 1)"));
    return static_cast<int>(verdict);
  });
  for (std::size_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(exitOf(children, rank), 0);
}

TEST(Failures, ARankThatLeavesIsNamed) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 2, {}, [&](Collectives& group) {
    if (group.barrier({in(seconds(30)), 0})) return 1;
    if (group.rank() == 1) return 0;  // the group is dropped in order
    const Error error = group.barrier({in(seconds(30)), 1});
    return static_cast<int>(Verdict()
                                .require(error.code() == ErrorCode::kPeerLost)
                                .require(contains(error.text(), "rank 1 left the group")));
  });
  EXPECT_EQ(exitOf(children, 0), 0);
  EXPECT_EQ(exitOf(children, 1), 0);
}

TEST(Failures, ARankThatLeavesAndKeepsTheGroupIsNamed) {
  auto made = ShmCollectives::inOneProcess({}, 2);
  ASSERT_TRUE(made.ok());
  made.value()[1]->leave();
  const Error error = made.value()[0]->barrier({in(seconds(30)), 0});
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(contains(error.text(), "rank 1 left the group")) << error.text();
}

TEST(Failures, AbortEndsTheOthersWaits) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 3, {}, [&](Collectives& group) {
    if (group.rank() == 2) {
      letOthersBlock(milliseconds(200));
      group.abort({ErrorCode::kShutdown, "the program ends"});
    }
    const Error error = group.barrier({in(seconds(30)), 0});
    return static_cast<int>(
        Verdict()
            .require(error.code() == ErrorCode::kShutdown)
            .require(contains(error.text(), "rank 2 ended the group: the program ends")));
  });
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(exitOf(children, rank), 0);
}

// Each case: what rank 2 does otherwise, and what everybody is told. Nobody's data changes, and the
// group works afterwards.
TEST(Failures, DifferencesAreNamedAndHarmNothing) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 3, {}, [&](Collectives& group) {
    const bool odd = group.rank() == 2;
    Verdict verdict;
    std::uint64_t sequence = 0;
    const auto call = [&](Element element = Element::kInt32,
                          Reduction reduction = Reduction::kSum) {
      return Call{in(seconds(30)), sequence++, element, reduction};
    };
    Memory data(400'000, std::byte{7});
    const Memory before = data;
    const Bytes all(data);
    const auto expect = [&](const Error& error, const std::string& part) {
      verdict.require(error.code() == ErrorCode::kInvalidArgument)
          .require(contains(error.text(), part))
          .require(data == before);
    };
    const auto sum = [&](Bytes part, Call how) { return group.allReduce(how, part); };

    expect(sum(all.first(odd ? 16 : 8), call()),
           "rank 0 called all_reduce of 8 bytes of int32 by sum (operation 0), rank 2 called "
           "all_reduce of 16 bytes");
    expect(sum(all.first(odd ? 400'000 : 8), call()), "of 400000 bytes");
    expect(sum(all, call(odd ? Element::kFloat32 : Element::kInt32)), "float32");
    expect(sum(all, call(Element::kInt32, odd ? Reduction::kMax : Reduction::kSum)), "max");
    expect(odd ? group.barrier(call()) : group.broadcast(call(), all, 0), "barrier");
    expect(group.broadcast(call(), all, odd ? 2 : 0), "root 2");
    if (odd) ++sequence;
    expect(group.barrier(call()), "barrier (operation 7)");
    if (!odd) ++sequence;

    Memory out(64);
    const Bytes into(out);
    const std::vector<Bytes> pieces = {into.first(4), into.subspan(4, odd ? 8 : 4),
                                       into.subspan(16, 4)};
    expect(group.allGather(call(), all.first(4), pieces),
           "rank 0 says that rank 1's part has 4 bytes, and rank 2 says 8");
    const std::vector<Bytes> three = {into.first(4), into.subspan(4, 4), into.subspan(8, 4)};
    expect(group.gather(call(), all.first(odd ? 8 : 4), odd ? std::vector<Bytes>() : three, 0),
           "rank 2 has 8 bytes for rank 0, which expects 4");
    const std::vector<ConstBytes> parts = {all.first(4), all.first(4), all.first(4)};
    expect(group.allToAll(
               call(), parts,
               odd ? std::vector<Bytes>{into.first(4), into.subspan(4, 12), into.subspan(16, 4)}
                   : three),
           "rank 1 has 4 bytes for rank 2, which expects 12");

    // Refused where it is called; the others are told.
    expect(sum(all.first(odd ? 7 : 8), call()),
           odd ? "7 bytes is not a whole number of elements" : "rank 2 refused its own call");
    expect(group.broadcast(call(), all, 9), "the group of 3 ranks has no rank 9");
    expect(sum(all, call(Element::kBytes)), "elements of type bytes cannot be reduced by sum");

    return static_cast<int>(verdict.require(!sum(all, call())).require(data != before));
  });
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(exitOf(children, rank), 0);
}

// --- How a group comes to be, or not.

// What rank 0 publishes at "shm".
std::string invitation(const std::string& socket) { return joinTexts({socket, ""}); }

std::string socketIn(const std::string& published) { return splitTexts(published).value().at(0); }

TEST(Joining, NamesARankThatDoesNotCome) {
  const TemporaryFolder folder;
  FolderStore store(folder.path());
  auto joined = ShmCollectives::join({}, groupKey(), store, 0, 2, in(milliseconds(300)));
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(joined.error().code(), ErrorCode::kTimeout);
  EXPECT_TRUE(contains(joined.error().text(), "rank 1 did not join"));
}

TEST(Joining, EndsWhereRankZeroIsNotHere) {
  const TemporaryFolder folder;
  FolderStore store(folder.path());
  ASSERT_FALSE(store.set("shm", invitation("weft-group-nobody")));
  const auto began = Clock::now();
  auto joined = ShmCollectives::join({}, groupKey(), store, 1, 2, in(seconds(30)));
  ASSERT_FALSE(joined.ok());
  EXPECT_TRUE(contains(joined.error().text(), "ECONNREFUSED"));
  EXPECT_LT(Clock::now() - began, seconds(10));
  // And rank 0 would be told.
  EXPECT_TRUE(store.get("shm-failed/1", Clock::now()).ok());
}

TEST(Joining, FailsForAllWhenOneFails) {
  const TemporaryFolder folder;
  FolderStore store(folder.path());
  ASSERT_FALSE(store.set("shm-failed/1", "out of luck"));
  const auto began = Clock::now();
  auto joined = ShmCollectives::join({}, groupKey(), store, 0, 2, in(seconds(30)));
  ASSERT_FALSE(joined.ok());
  EXPECT_TRUE(contains(joined.error().text(), "rank 1 could not join"));
  EXPECT_TRUE(contains(joined.error().text(), "out of luck"));
  EXPECT_LT(Clock::now() - began, seconds(10));
}

// Joins as rank 1 of 2, with rank 0's invitation; a failure does not reach rank 0 and end its
// group.
bool joinsWith(const transport::AuthKey& key, const std::string& published) {
  const TemporaryFolder folder;
  FolderStore store(folder.path());
  static_cast<void>(store.set("shm", published));
  return ShmCollectives::join({}, key, store, 1, 2, in(seconds(10))).ok();
}

TEST(Joining, TheKeyIsNeeded) {
  const TemporaryFolder folder;
  Children children;
  children.start([&] {
    FolderStore store(folder.path());
    auto joined = ShmCollectives::join({}, groupKey(), store, 0, 2, in(seconds(2)));
    return joined.ok()
               ? 1
               : static_cast<int>(!contains(joined.error().text(), "without the group's key"));
  });
  FolderStore store(folder.path());
  const auto published = store.get("shm", in(seconds(10)));
  ASSERT_TRUE(published.ok());
  EXPECT_FALSE(joinsWith(groupKey('d'), published.value()));
  EXPECT_EQ(children.wait(0, seconds(30)), 0);
}

// Whoever reads the store knows the socket's name, and nothing else.
TEST(Joining, NoSecretIsPublished) {
  const TemporaryFolder folder;
  Children children;
  children.start([&] {
    FolderStore store(folder.path());
    auto joined = ShmCollectives::join({}, groupKey(), store, 0, 2, in(seconds(20)));
    return static_cast<int>(!joined.ok());
  });
  FolderStore store(folder.path());
  const auto published = store.get("shm", in(seconds(10)));
  ASSERT_TRUE(published.ok());
  EXPECT_EQ(published.value(), invitation(socketIn(published.value())));
  EXPECT_FALSE(joinsWith(groupKey('d'), published.value()));
  EXPECT_TRUE(joinsWith(groupKey(), published.value()));
  EXPECT_EQ(children.wait(0, seconds(30)), 0);
}

TEST(Joining, WhyRankZeroHasNoMemoryIsToldToAll) {
  const TemporaryFolder folder;
  FolderStore store(folder.path());
  ASSERT_FALSE(store.set("shm", joinTexts({"", "no room"})));
  auto joined = ShmCollectives::join({}, groupKey(), store, 1, 2, in(seconds(10)));
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(joined.error().text(), "rank 0 could not make shared memory: no room");
  for (const char* const nonsense : {"", "weft-group-nobody", "4:name", "1:a1:b1:c"}) {
    ASSERT_FALSE(store.set("shm", nonsense));
    joined = ShmCollectives::join({}, groupKey(), store, 1, 2, in(seconds(10)));
    ASSERT_FALSE(joined.ok());
    EXPECT_EQ(joined.error().code(), ErrorCode::kProtocol) << nonsense;
  }
}

constexpr const char* kSocketName = "weft-group-test";

// What rank 1 takes where somebody between it and rank 0, who heard another name of the socket or
// changes the byte `changed` of rank 0's answer, passes all on.
Result<shm::GivenMemory> takeThrough(const std::string& heard, std::size_t changed) {
  auto segment = shm::Segment::create(shm::Layout::of(2, 4096, 4096, 0));
  if (!segment.ok()) return segment.error();
  std::array<int, 2> near{}, far{};
  for (auto* const pair : {&near, &far})
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair->data()), 0);
  std::thread host([&] {
    static_cast<void>(shm::giveMemory(transport::UniqueFd(far[0]), *segment.value(), groupKey(),
                                      kSocketName, in(seconds(10))));
  });
  std::thread between([&] {
    std::array<char, 512> bytes{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> fd{};
    for (auto [from, to] : {std::pair(near[1], far[1]), std::pair(far[1], near[1])}) {
      iovec part{bytes.data(), bytes.size()};
      msghdr message{nullptr, 0, &part, 1, fd.data(), fd.size(), 0};
      static_cast<void>(shm::awaitReadable(from, in(seconds(10))));
      const ssize_t got = ::recvmsg(from, &message, 0);
      if (got <= 0) break;
      if (from == far[1] && changed < static_cast<std::size_t>(got)) bytes[changed] ^= 16;
      part.iov_len = static_cast<std::size_t>(got);
      EXPECT_EQ(::sendmsg(to, &message, MSG_NOSIGNAL), got);
    }
    ::close(near[1]);
    ::close(far[1]);
  });
  auto taken = shm::takeMemory(transport::UniqueFd(near[0]), groupKey(), heard, 1, in(seconds(10)));
  host.join();
  between.join();
  return taken;
}

TEST(Joining, NobodyBetweenTheRanksChangesWhatTheySay) {
  constexpr std::size_t kNone = ~std::size_t{0};
  const auto taken = takeThrough(kSocketName, kNone);
  ASSERT_TRUE(taken.ok()) << taken.error().text();
  EXPECT_EQ(taken.value().layout, shm::Layout::of(2, 4096, 4096, 0));
  EXPECT_FALSE(takeThrough("weft-group-another", kNone).ok());
  // The magic, the layout's numbers, the proof.
  for (const std::size_t changed : {0, 16, 24, 32, 40, 48, 56}) {
    const auto refused = takeThrough(kSocketName, changed);
    ASSERT_FALSE(refused.ok()) << changed;
    EXPECT_EQ(refused.error().code(), ErrorCode::kAuthFailed) << changed;
  }
}

TEST(Joining, ALayoutThatNoGroupHasIsRefused) {
  const shm::Layout good = shm::Layout::of(2, 4096, 4096, 0);
  EXPECT_TRUE(good.fits(2));
  EXPECT_FALSE(good.fits(3));
  for (auto shm::Layout::*number : {&shm::Layout::small_bytes, &shm::Layout::buffer_bytes,
                                    &shm::Layout::control_bytes, &shm::Layout::heap_bytes}) {
    for (const std::size_t value : {std::size_t{1}, std::size_t{1} << 40, ~std::size_t{0} << 21}) {
      shm::Layout bad = good;
      bad.*number = value;
      EXPECT_FALSE(bad.fits(2)) << value;
    }
  }
}

TEST(Joining, MemoryThatIsNotSealedIsRefused) {
  const shm::Layout layout = shm::Layout::of(2, 4096, 4096, 0);
  transport::UniqueFd fd(::memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(layout.fileBytes())), 0);
  auto opened = shm::Segment::open(layout, {}, std::move(fd));
  ASSERT_FALSE(opened.ok());
  EXPECT_TRUE(contains(opened.error().text(), "not sealed"));
}

std::size_t entriesOf(const char* folder) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    count += entry.path().filename().string().find("weft-g") != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(Leftovers, NoneAfterAllWereKilled) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 3, {}, [&](Collectives& group) {
    std::vector<std::byte> data(8 << 20);
    for (std::uint64_t sequence = 0;; ++sequence) {
      if (group.allReduce({in(seconds(30)), sequence, Element::kFloat32, Reduction::kSum}, data)) {
        return 1;
      }
    }
  });
  FolderStore store(folder.path());
  ASSERT_TRUE(store.get("shm", in(seconds(20))).ok());
  takes(milliseconds(300));
  for (std::size_t rank = 0; rank < 3; ++rank)
    children.kill(rank);
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_GT(exitOf(children, rank), 128 - 1);
  EXPECT_EQ(entriesOf("/dev/shm"), 0U);
  std::ifstream sockets("/proc/net/unix");
  const std::string name = socketIn(store.get("shm", Clock::now()).value());
  ASSERT_FALSE(name.empty());
  for (std::string line; std::getline(sockets, line);) {
    EXPECT_EQ(line.find(name), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace weft::collectives::testing
