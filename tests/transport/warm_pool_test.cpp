// WarmPool: what it hands out, when memory comes back, and what a forked child may do.
#include "transport/memory/warm_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace weft::transport {
namespace {

using std::chrono::seconds;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// How many pages of a block are in memory.
std::size_t residentPages(const OwnedBuffer& block) {
  std::vector<unsigned char> pages((block.size + 4095) / 4096);
  EXPECT_EQ(::mincore(block.data, block.size, pages.data()), 0);
  std::size_t count = 0;
  for (const unsigned char page : pages)
    count += page & 1U;
  return count;
}

TEST(WarmPool, LeavesSmallBuffersToOthers) {
  const auto pool = WarmPool::create(8 * kMiB);
  ASSERT_NE(pool, nullptr);
  EXPECT_EQ(pool->take(WarmPool::kThreshold - 1).data, nullptr);
  EXPECT_NE(pool->take(WarmPool::kThreshold).data, nullptr);
}

TEST(WarmPool, UsesTheSamePagesAgain) {
  const auto pool = WarmPool::create(8 * kMiB);
  OwnedBuffer block = pool->take(kMiB);
  EXPECT_EQ(residentPages(block), 0U);
  std::memset(block.data, 7, block.size);
  const std::byte* const where = block.data;
  block = {};
  const OwnedBuffer again = pool->take(kMiB);
  EXPECT_EQ(again.data, where);
  EXPECT_EQ(residentPages(again), kMiB / 4096);
}

TEST(WarmPool, GivesNothingWhenItIsFull) {
  const auto pool = WarmPool::create(4 * kMiB);
  OwnedBuffer all = pool->take(4 * kMiB);
  ASSERT_NE(all.data, nullptr);
  EXPECT_EQ(pool->take(WarmPool::kThreshold).data, nullptr);
  all = {};
  EXPECT_NE(pool->take(WarmPool::kThreshold).data, nullptr);
  EXPECT_EQ(pool->take(5 * kMiB).data, nullptr);
}

TEST(WarmPool, GivesMemoryBackWhenItIsQuiet) {
  const auto pool = WarmPool::create(256 * kMiB);
  OwnedBuffer kept = pool->take(kMiB);
  OwnedBuffer gone = pool->take(198 * kMiB);
  std::memset(kept.data, 1, kept.size);
  std::memset(gone.data, 2, gone.size);
  gone = {};
  EXPECT_EQ(pool->heldBytes(), 200 * kMiB);

  std::chrono::steady_clock::time_point now{};
  pool->tick(now);
  pool->tick(now += WarmPool::kIdleAfter - seconds(1));
  EXPECT_EQ(pool->heldBytes(), 200 * kMiB);
  pool->tick(now += seconds(1));
  EXPECT_EQ(pool->heldBytes(), 200 * kMiB - WarmPool::kTrimAtOnce);
  for (int i = 0; i < 4; ++i)
    pool->tick(now += seconds(1));
  EXPECT_EQ(pool->heldBytes(), WarmPool::kKeep);
  const OwnedBuffer later = pool->take(198 * kMiB);
  EXPECT_LT(residentPages(later), WarmPool::kKeep / 4096);
  for (std::size_t i = 0; i < kept.size; ++i)
    ASSERT_EQ(kept.data[i], std::byte{1});
}

TEST(WarmPool, IsNotQuietWhileBlocksAreTaken) {
  const auto pool = WarmPool::create(64 * kMiB);
  std::chrono::steady_clock::time_point now{};
  for (int i = 0; i < 10; ++i) {
    static_cast<void>(pool->take(32 * kMiB));
    pool->tick(now += WarmPool::kIdleAfter);
  }
  EXPECT_EQ(pool->heldBytes(), 32 * kMiB);
}

TEST(WarmPool, BlocksOutliveIt) {
  auto pool = WarmPool::create(8 * kMiB);
  const OwnedBuffer block = pool->take(kMiB);
  pool.reset();
  std::memset(block.data, 3, block.size);
  EXPECT_EQ(block.data[kMiB - 1], std::byte{3});
}

TEST(WarmPool, BlocksDoNotOverlapUnderThreads) {
  constexpr std::uint64_t kRoom = 16 * kMiB;
  void* const base =
      ::mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(base, MAP_FAILED);
  WarmPool::Memory memory;
  memory.base = static_cast<std::byte*>(base);
  memory.bytes = kRoom;
  memory.owner = {base, [](void* at) { ::munmap(at, kRoom); }};
  memory.most_idle = 0;  // each block that goes gives memory back
  const auto pool = std::make_shared<WarmPool>(std::move(memory));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<OwnedBuffer> mine;
      for (int i = 0; i < 300; ++i) {
        if (mine.size() > 4 || (!mine.empty() && random() % 2 == 0)) {
          const OwnedBuffer& oldest = mine.front();
          for (std::size_t at = 0; at < oldest.size; at += 512) {
            if (oldest.data[at] != static_cast<std::byte>(t)) ++failures;
          }
          mine.erase(mine.begin());
        }
        OwnedBuffer block = pool->take(WarmPool::kThreshold + random() % kMiB);
        if (block.data == nullptr) continue;
        std::memset(block.data, static_cast<int>(t), block.size);
        mine.push_back(std::move(block));
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(pool->freeBytes(), kRoom);
  EXPECT_EQ(pool->heldBytes(), 0U);
}

// What a forked child drops was its own copy; what the parent holds stays the parent's.
TEST(WarmPool, AForkedChildMayReadAndDropWhatItInherited) {
  const auto pool = WarmPool::create(8 * kMiB);
  OwnedBuffer block = pool->take(kMiB);
  std::memset(block.data, 5, block.size);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool same = block.data[kMiB - 1] == std::byte{5};
    block.data[0] = std::byte{6};
    block = {};
    ::_exit(same ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(block.data[0], std::byte{5});
  EXPECT_EQ(pool->freeBytes(), 7 * kMiB);
}

}  // namespace
}  // namespace weft::transport
