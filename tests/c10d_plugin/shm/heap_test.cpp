// Data in memory that the group allocates: every operation on it, next to others' ordinary memory,
// and what becomes of it when a rank dies, lies or has no room.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "c10d_plugin/shm/direct_data.h"
#include "c10d_plugin/shm/segment/rendezvous.h"
#include "c10d_plugin/shm/segment/step_barrier.h"
#include "tests/c10d_plugin/shm/exercise.h"
#include "transport/base/log.h"

#include "tests/support/waiting.h"

namespace weft::collectives::testing {
namespace {

struct Mix {
  int ranks;
  double share;
};
class Heaps : public ::testing::TestWithParam<Mix> {};

TEST_P(Heaps, EveryOperationOnSharedAndOrdinaryMemory) {
  const auto [ranks, share] = GetParam();
  const std::uint64_t seed = std::random_device{}();
  std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
  EXPECT_EQ(runInProcesses(ranks, tiny(),
                           [&, share = share](Collectives& group) {
                             Exercise exercise(group, seed);
                             exercise.allocateShared(share);
                             for (int i = 0; i < 300; ++i)
                               exercise.anything(200'000);
                             const bool used = exercise.placedShared() > 20;
                             return exercise.failures() == 0 && used ? 0 : 1;
                           }),
            0);
}

TEST_P(Heaps, ThreadsToo) {
  const auto [ranks, share] = GetParam();
  const std::uint64_t seed = std::random_device{}();
  auto made = ShmCollectives::inOneProcess(tiny(), ranks);
  ASSERT_TRUE(made.ok()) << made.error().text();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (auto& group : made.value()) {
    threads.emplace_back([&, share = share] {
      Exercise exercise(*group, seed);
      exercise.allocateShared(share);
      for (int i = 0; i < 100; ++i)
        exercise.anything(100'000);
      failures += exercise.failures();
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(failures.load(), 0) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Mixes, Heaps,
                         ::testing::Values(Mix{1, 1}, Mix{2, 1}, Mix{2, 0.5}, Mix{3, 0.8},
                                           Mix{4, 1}));

std::unique_ptr<Collectives> alone(std::size_t heap_bytes) {
  ShmOptions options;
  options.heap_bytes = heap_bytes;
  auto made = ShmCollectives::inOneProcess(options, 1);
  return std::move(made.value().front());
}

TEST(Heap, RoomComesBackWithTheLastOwner) {
  const auto group = alone(std::size_t{4} << 20);
  std::byte* first = nullptr;
  {
    const auto block = group->allocate(std::size_t{3} << 20);
    ASSERT_NE(block.data, nullptr);
    first = block.data;
    EXPECT_EQ(group->allocate(std::size_t{2} << 20).data, nullptr);  // no room
    EXPECT_EQ(group->allocate(std::size_t{8} << 20).data, nullptr);
    EXPECT_EQ(group->allocate(16).data, nullptr);  // not worth it
  }
  EXPECT_EQ(group->allocate(std::size_t{4} << 20).data, first);
}

TEST(Heap, BlocksOutliveTheGroup) {
  auto group = alone(std::size_t{4} << 20);
  const auto block = group->allocate(100'000);
  ASSERT_NE(block.data, nullptr);
  group.reset();
  std::memset(block.data, 7, block.size);
  EXPECT_EQ(block.data[99'999], std::byte{7});
}

TEST(Heap, MemoryBeyondWhatIsKeptGoesBackToTheSystem) {
  const std::size_t bytes = shm::Heap::kKeep / 2;
  auto segment = shm::Segment::create(shm::Layout::of(1, 4096, 4096, 4 * bytes));
  ASSERT_TRUE(segment.ok()) << segment.error().text();
  const auto heap = std::make_shared<shm::Heap>(segment.value(), 0);
  auto first = heap->take(bytes);
  auto second = heap->take(bytes);
  auto third = heap->take(bytes);
  ASSERT_NE(third.data, nullptr);
  EXPECT_EQ(heap->heldBytes(), 3 * bytes);
  third = {};
  second = {};
  first = {};
  EXPECT_EQ(heap->heldBytes(), shm::Heap::kKeep);
}

TEST(Heap, AFailedGroupGivesNoMoreAndUsesNoBlockTwice) {
  const auto group = alone(std::size_t{4} << 20);
  auto block = group->allocate(100'000);
  ASSERT_NE(block.data, nullptr);
  group->abort({ErrorCode::kShutdown, "enough"});
  block = {};
  EXPECT_EQ(group->allocate(100'000).data, nullptr);
}

TEST(Heap, AChildSeesItsParentsBlocksAndFreesNone) {
  const auto group = alone(std::size_t{4} << 20);
  auto block = group->allocate(100'000);
  ASSERT_NE(block.data, nullptr);
  block.data[5] = std::byte{42};
  Children children;
  children.start([&] {
    const bool seen = block.data[5] == std::byte{42};
    const bool none = group->allocate(100'000).data == nullptr;
    block = {};
    return seen && none ? 0 : 1;
  });
  EXPECT_EQ(children.wait(0, seconds(20)), 0);
  EXPECT_NE(group->allocate(100'000).data, block.data);
  EXPECT_EQ(block.data[5], std::byte{42});
}

// Rank 1 of 3 dies within an all_reduce of shared memory.
TEST(Heap, ADeadRankIsNamedWithinASecond) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, 3, {}, [](Collectives& group) {
    const auto data = group.allocate(std::size_t{20} << 20);
    if (data.data == nullptr) return 1;
    std::uint64_t sequence = 0;
    if (group.rank() == 1) {
      std::thread([] {
        takes(milliseconds(60));
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
    Error error;
    auto last_success = Clock::now();
    while (
        !(error = group.allReduce({in(seconds(30)), sequence++, Element::kFloat32, Reduction::kSum},
                                  {data.data, data.size}))) {
      last_success = Clock::now();
    }
    const bool soon = Clock::now() - last_success < seconds(5);  // the machine may be busy
    const bool named = error.text().find("rank 1 died") != std::string::npos;
    if (!named) std::fprintf(stderr, "%s\n", error.text().c_str());
    return soon && named && error.code() == ErrorCode::kPeerLost ? 0 : 2;
  });
  EXPECT_EQ(children.wait(0, seconds(60)), 0);
  EXPECT_EQ(children.wait(1, seconds(60)), 128 + SIGKILL);
  EXPECT_EQ(children.wait(2, seconds(60)), 0);
}

// What a rank that goes on too late still writes into another's heap.
TEST(Heap, WhatIsWrittenAfterItWasDetachedReachesNobody) {
  const shm::Layout layout = shm::Layout::of(2, 4096, 4096, std::size_t{8} << 20);
  auto segment = shm::Segment::create(layout);
  ASSERT_TRUE(segment.ok()) << segment.error().text();
  const auto heap = std::make_shared<shm::Heap>(segment.value(), 0);
  const auto block = heap->take(std::size_t{5} << 20);
  ASSERT_NE(block.data, nullptr);
  std::memset(block.data, 1, block.size);
  auto other = shm::Segment::open(layout, segment.value()->magic(),
                                  transport::UniqueFd(::dup(segment.value()->fd())));
  ASSERT_TRUE(other.ok()) << other.error().text();
  auto mapped = other.value()->heap(0);
  ASSERT_TRUE(mapped.ok()) << mapped.error().text();
  std::byte* const theirs = mapped.value() + *heap->offsetOf({block.data, block.size});
  std::memset(theirs, 2, 100);
  ASSERT_EQ(block.data[99], std::byte{2});

  ASSERT_TRUE(heap->detach());
  std::memset(theirs, 3, block.size);
  EXPECT_EQ(block.data[99], std::byte{2});
  EXPECT_EQ(block.data[100], std::byte{1});
  EXPECT_EQ(block.data[block.size - 1], std::byte{1});
  block.data[0] = std::byte{4};
  EXPECT_EQ(block.data[0], std::byte{4});
  EXPECT_EQ(theirs[0], std::byte{3});
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need new mappings
// The last way out of a failed operation, where the system refuses the other.
TEST(Heap, ARankWaitsForAWriterThatWasStoppedAndSaysSo) {
  Children children;
  children.start([] {
    auto segment = shm::Segment::create(shm::Layout::of(2, 4096, 4096, std::size_t{8} << 20));
    if (!segment.ok()) return 1;
    const auto heap = std::make_shared<shm::Heap>(segment.value(), 0);
    const auto block = heap->take(std::size_t{5} << 20);
    shm::DirectData direct(*segment.value(), *heap, 0);
    const ConstBytes offered(block.data, block.size);
    direct.begin(0);
    if (!direct.offer(std::span(&offered, 1)) || !segment.value()->beginWriting(1)) return 2;
    segment.value()->fail({ErrorCode::kTimeout, "late"});
    static std::atomic<int> lines{0};
    static std::atomic<bool> stopped{true};
    transport::setLogSink([](transport::LogLevel, const std::string&) { ++lines; });
    std::thread peer([&] {
      static_cast<void>(waitUntil([] { return lines.load() != 0; }, seconds(10)));
      takes(milliseconds(500));
      stopped.store(false);
      segment.value()->endWriting(1);
    });
    const rlimit none{1, RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &none);  // no mapping more
    direct.withdraw();
    const bool waited = !stopped.load();
    peer.join();
    return waited && lines.load() == 1 ? 0 : 3;
  });
  EXPECT_EQ(children.wait(0, seconds(60)), 0);
}
#endif

// Whoever has ended an operation may use its memory at once: nobody writes there any more.
TEST(Heap, AfterAnAbortNobodyWritesAnyMore) {
  auto made = ShmCollectives::inOneProcess({}, 3);
  ASSERT_TRUE(made.ok()) << made.error().text();
  std::vector<transport::OwnedBuffer> data;
  for (auto& group : made.value())
    data.push_back(group->allocate(std::size_t{32} << 20));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const Bytes bytes{data[rank].data, data[rank].size};
      std::uint64_t sequence = 0;
      while (!made.value()[rank]->allReduce(
          {in(seconds(30)), sequence++, Element::kInt32, Reduction::kMax}, bytes)) {
      }
      std::memset(bytes.data(), 0x55, bytes.size());
      timeForWhatMustNotHappen(milliseconds(50));
      for (const std::byte byte : bytes)
        wrong += byte == std::byte{0x55} ? 0 : 1;
    });
  }
  letOthersBlock(milliseconds(40));
  made.value()[1]->abort({ErrorCode::kShutdown, "enough"});
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

// Rank 1 says by hand that its data lie where it has none.
TEST(Heap, ALyingRankIsNamed) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const TemporaryFolder folder;
  FolderStore store(folder.path());
  Error error;
  std::thread reader([&] {
    FolderStore own(folder.path());
    auto group = ShmCollectives::join({}, groupKey(), own, 0, 2, in(seconds(20)));
    ASSERT_TRUE(group.ok()) << group.error().text();
    std::vector<std::byte> into(kBytes);
    error = group.value()->broadcast({in(seconds(20)), 0}, into, 1);
  });
  auto segment = shm::attach(groupKey(), store, 1, 2, in(seconds(20)));
  ASSERT_TRUE(segment.ok()) << segment.error().text();
  shm::CallRecord record;
  record.op.bytes = kBytes;
  record.op.root_or_sizes = 1;
  record.op.operation = Operation::kBroadcast;
  record.direct = true;
  segment.value()->control(1).records[0] = record;
  // The last bytes would lie beyond its end.
  segment.value()->sizes(1, 0, shm::SizeTable::kOffsets)[0] =
      segment.value()->layout().heap_bytes - kBytes + 1;
  shm::StepBarrier steps(*segment.value(), 1);
  static_cast<void>(steps.next(record.op, in(seconds(20)), true));
  reader.join();
  EXPECT_EQ(error.code(), ErrorCode::kProtocol) << error.text();
  EXPECT_NE(error.text().find("rank 1 offers"), std::string::npos) << error.text();
  EXPECT_EQ(segment.value()->failure().text(), error.text());
}

}  // namespace
}  // namespace weft::collectives::testing
