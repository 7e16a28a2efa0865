// Shared memory, one piece after the other: the bookkeeping, the sender's end, the receiver's.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transport/recorder.h"
#include "transport/arena/arena_sender.h"
#include "transport/arena/arena_view.h"
#include "transport/arena/shared_arena.h"
#include "transport/arena/shared_copy.h"
#include "transport/frame/out_frame.h"
#include "transport/memory/block_allocator.h"
#include "transport/memory/fast_memcpy.h"

namespace weft::transport {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(BlockAllocator, GivesTheLowestRangeThatFits) {
  BlockAllocator allocator(64 * 4096 + 100);
  EXPECT_EQ(allocator.freeBytes(), 64U * 4096);
  EXPECT_EQ(allocator.take(1), 0U);
  EXPECT_EQ(allocator.take(4097), 4096U);
  EXPECT_EQ(allocator.take(4096), 3U * 4096);
  allocator.give(0);
  EXPECT_EQ(allocator.take(4097), 4U * 4096);  // not into the hole of one unit
  EXPECT_EQ(allocator.take(4096), 0U);
  EXPECT_EQ(allocator.take(0), std::nullopt);
  EXPECT_EQ(allocator.take(std::uint64_t{59} * 4096), std::nullopt);
  EXPECT_EQ(allocator.take(~std::uint64_t{0}), std::nullopt);
}

TEST(BlockAllocator, RandomTakingAndGivingNeverOverlapsAndLosesNothing) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::uint64_t units = 1 + random() % 200;
    BlockAllocator allocator(units * BlockAllocator::kUnit);
    std::map<std::uint64_t, std::uint64_t> taken;  // offset -> size as asked for
    const auto rounded = [](std::uint64_t size) { return (size + 4095) / 4096 * 4096; };
    for (int step = 0; step < 300; ++step) {
      if (!taken.empty() && random() % 5 < 2) {
        const auto victim =
            std::next(taken.begin(), static_cast<std::ptrdiff_t>(random() % taken.size()));
        allocator.give(victim->first);
        taken.erase(victim);
      } else {
        const std::uint64_t size = 1 + random() % (random() % 4 == 0 ? 200'000 : 9000);
        if (const auto offset = allocator.take(size)) {
          ASSERT_EQ(*offset % BlockAllocator::kUnit, 0U);
          ASSERT_TRUE(taken.emplace(*offset, size).second) << "seed " << seed;
        }
      }
      // Free and taken ranges tile the whole.
      std::map<std::uint64_t, std::uint64_t> all;
      for (const auto& [offset, size] : taken)
        all[offset] = rounded(size);
      std::uint64_t free_bytes = 0;
      allocator.visitFreeChunks(BlockAllocator::kUnit, [&](std::uint64_t unit) {
        free_bytes += BlockAllocator::kUnit;
        return all.emplace(unit * BlockAllocator::kUnit, BlockAllocator::kUnit).second;
      });
      ASSERT_EQ(free_bytes, allocator.freeBytes()) << "seed " << seed;
      std::uint64_t at = 0;
      std::uint64_t gap = 0;
      std::vector<std::uint64_t> gaps;
      for (const auto& [offset, size] : all) {
        ASSERT_EQ(offset, at) << "seed " << seed << " step " << step;
        at = offset + size;
        if (!taken.contains(offset)) {
          gap += size;
        } else if (gap != 0) {
          gaps.push_back(std::exchange(gap, 0));
        }
      }
      ASSERT_EQ(at, units * BlockAllocator::kUnit);
      if (gap != 0) gaps.push_back(gap);
      // Free neighbours are one range: each gap can be taken whole.
      std::ranges::sort(gaps, std::greater());
      BlockAllocator copy = allocator;
      for (const std::uint64_t size : gaps)
        ASSERT_TRUE(copy.take(size)) << "seed " << seed << " step " << step;
    }
  }
}

// Both ends in one process, as two mappings of the same memory.
struct Ends {
  explicit Ends(std::uint64_t bytes = 8 * kMiB, std::uint32_t slots = 64) {
    sender = std::move(SharedArena::create(bytes, slots)).value();
    UniqueFd fd(::dup(sender->fd()));
    receiver = std::move(ArenaView::open(sender->offer(), fd, bytes + 16 * kMiB)).value();
  }
  OwnedBuffer pass(std::size_t size, int fill) {
    const auto block = sender->take(size);
    EXPECT_TRUE(block.has_value());
    std::memset(sender->bytes(*block), fill, size);
    sender->handOver(*block);
    Result<OwnedBuffer> lent = receiver->lend(*block, size);
    EXPECT_TRUE(lent.ok());
    return std::move(lent).value();
  }
  std::shared_ptr<SharedArena> sender;
  std::shared_ptr<ArenaView> receiver;
};

TEST(SharedArena, ABlockIsReusedOnceItsLastUserIsGone) {
  Ends ends;
  OwnedBuffer first = ends.pass(kMiB, 1);
  EXPECT_EQ(first.data[kMiB - 1], std::byte{1});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data) % kArenaAlignment, 0U);
  OwnedBuffer second = ends.pass(kMiB, 2);
  EXPECT_EQ(first.data[0], std::byte{1});
  EXPECT_EQ(ends.sender->blocksInUse(), 2U);
  const std::byte* const place = first.data;
  OwnedBuffer copy = first;
  first = {};
  EXPECT_EQ(ends.sender->blocksInUse(), 2U);
  std::thread([user = copy]() mutable { user = {}; }).join();
  EXPECT_EQ(ends.sender->blocksInUse(), 2U);
  copy = {};
  EXPECT_EQ(ends.sender->blocksInUse(), 1U);
  const OwnedBuffer third = ends.pass(kMiB, 3);
  EXPECT_EQ(third.data, place);  // the warm pages
  EXPECT_EQ(second.data[0], std::byte{2});
}

TEST(SharedArena, WithoutRoomOrSlotsThereIsNoBlock) {
  Ends room(4 * kMiB);
  OwnedBuffer most = room.pass(3 * kMiB, 1);
  EXPECT_EQ(room.sender->take(2 * kMiB), std::nullopt);
  most = {};
  EXPECT_NE(room.sender->take(2 * kMiB), std::nullopt);

  Ends slots(8 * kMiB, 3);
  const OwnedBuffer a = slots.pass(1, 1);
  const OwnedBuffer b = slots.pass(1, 1);
  OwnedBuffer c = slots.pass(1, 1);
  EXPECT_EQ(slots.sender->take(1), std::nullopt);
  c = {};
  EXPECT_NE(slots.sender->take(1), std::nullopt);
}

TEST(SharedArena, WhatIsNotHandedOverIsGivenBackNotReclaimed) {
  Ends ends;
  const auto block = ends.sender->take(kMiB);
  ASSERT_TRUE(block.has_value());
  // A receiver that lies says "free" while the block is being written.
  static_cast<void>(ends.receiver->lend(*block, kMiB));
  EXPECT_EQ(ends.sender->blocksInUse(), 1U);
  ends.sender->giveBack(*block);
  EXPECT_EQ(ends.sender->blocksInUse(), 0U);

  Message message{{}, {newBuffer(kMiB)}};
  {
    ArenaPlacement placement(ends.sender);
    placement.add(0, ends.sender->take(kMiB).value());
    Limits limits;
    limits.max_message_bytes = 1000;
    EXPECT_FALSE(OutFrame::message(std::move(message), limits, std::move(placement)).ok());
  }
  EXPECT_EQ(ends.sender->blocksInUse(), 0U);
}

TEST(SharedArena, MemoryIsObtainedWhenUsedAndGivenBackWhenQuiet) {
  Ends ends(64 * kMiB);
  EXPECT_EQ(ends.sender->heldBytes(), 0U);
  OwnedBuffer low = ends.pass(kMiB, 1);
  OwnedBuffer high = ends.pass(20 * kMiB, 2);
  EXPECT_EQ(ends.sender->heldBytes(), 22 * kMiB);
  const auto begin = std::chrono::steady_clock::now();
  const auto tickAfter = [&](int seconds) {
    ends.sender->tick(begin + std::chrono::seconds(seconds));
    return ends.sender->heldBytes();
  };
  EXPECT_EQ(tickAfter(0), 22 * kMiB);
  EXPECT_EQ(tickAfter(20), 22 * kMiB);  // all of it is in use
  high = {};
  EXPECT_EQ(tickAfter(21), WarmPool::kKeep);  // `low` lies in the first chunk of it
  EXPECT_EQ(low.data[kMiB - 1], std::byte{1});
  const OwnedBuffer again = ends.pass(20 * kMiB, 3);
  EXPECT_EQ(again.data[20 * kMiB - 1], std::byte{3});
  EXPECT_EQ(low.data[0], std::byte{1});
}

TEST(SharedArena, ManyThreadsTakeAndReleaseAtOnce) {
  Ends ends(16 * kMiB, 100);
  std::vector<std::thread> threads;
  threads.reserve(6);
  std::atomic<int> passed{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::pair<OwnedBuffer, int>> held;
      for (int i = 0; i < 400; ++i) {
        const std::size_t size = 1 + random() % (random() % 10 == 0 ? 3 * kMiB : 70'000);
        const auto block = ends.sender->take(size);
        if (block) {
          const int fill = static_cast<int>(random() % 256);
          std::memset(ends.sender->bytes(*block), fill, size);
          ends.sender->handOver(*block);
          held.emplace_back(ends.receiver->lend(*block, size).value(), fill);
          ++passed;
        }
        if (held.size() > 10 || (!block && !held.empty())) {
          const auto& [buffer, fill] = held.front();
          EXPECT_EQ(buffer.data[0], static_cast<std::byte>(fill));
          EXPECT_EQ(buffer.data[buffer.size - 1], static_cast<std::byte>(fill));
          held.erase(held.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_GT(passed, 600);
  EXPECT_EQ(ends.sender->blocksInUse(), 0U);
}

TEST(SharedArena, AForkedChildReleasesNothing) {
  Ends ends;
  OwnedBuffer buffer = ends.pass(kMiB, 7);
  const pid_t child = ::fork();
  if (child == 0) {
    bool right = buffer.data[kMiB - 1] == std::byte{7};
    buffer = {};
    // The sender's mapping is not here; what has taken its place must stay.
    constexpr std::size_t kMuch = 64 * kMiB;
    void* other =
        ::mmap(nullptr, kMuch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ends.sender.reset();
    std::memset(other, 1, kMuch);
    right = right && static_cast<char*>(other)[kMuch - 1] == 1;
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ends.sender->blocksInUse(), 1U);
  buffer = {};
  EXPECT_EQ(ends.sender->blocksInUse(), 0U);
}

TEST(ArenaView, TheMappingOutlivesItsSenderAndItself) {
  auto ends = std::make_unique<Ends>();
  const OwnedBuffer buffer = ends->pass(kMiB, 9);
  ends.reset();
  EXPECT_EQ(buffer.data[0], std::byte{9});
  EXPECT_EQ(buffer.data[kMiB - 1], std::byte{9});
  buffer.data[5] = std::byte{1};
}

TEST(ArenaView, WhatIsNoBlockOnOfferIsRefused) {
  Ends ends(4 * kMiB, 8);
  const auto block = ends.sender->take(kMiB);
  ASSERT_TRUE(block.has_value());
  const auto why = [&](const std::function<void(ArenaDescriptor&)>& change, std::uint64_t size) {
    ArenaDescriptor where = *block;
    change(where);
    const Result<OwnedBuffer> lent = ends.receiver->lend(where, size);
    if (lent.ok()) return std::string("lent");
    EXPECT_EQ(lent.error().code(), ErrorCode::kProtocol);
    return lent.error().text();
  };
  const std::string outside = "a buffer outside of shared memory";
  EXPECT_EQ(why([](ArenaDescriptor& d) { d.slot = 8; }, 1),
            "a buffer in slot 8 of 8 in shared memory");
  EXPECT_EQ(why([](ArenaDescriptor& d) { d.offset = 0; }, 1), outside);
  EXPECT_EQ(why([](ArenaDescriptor& d) { d.offset = kArenaDataOffset - 4096; }, 1), outside);
  EXPECT_EQ(why([](ArenaDescriptor& d) { d.offset = ~std::uint64_t{0} - 63; }, 64), outside);
  EXPECT_EQ(why([](ArenaDescriptor& d) { d.offset += 4 * kMiB; }, 1), outside);
  EXPECT_EQ(why([](ArenaDescriptor& d) { d.offset += 3 * kMiB; }, kMiB + 1), outside);
  EXPECT_EQ(why([](ArenaDescriptor&) {}, 0), outside);
  EXPECT_EQ(why([](ArenaDescriptor&) {}, ~std::uint64_t{0}), outside);
  EXPECT_EQ(why([](ArenaDescriptor& d) { d.offset += 8; }, 1),
            "a misaligned buffer in shared memory");
  const std::string not_on_offer = "a block of shared memory that was not offered";
  EXPECT_EQ(why([](ArenaDescriptor& d) { d.slot ^= 1; }, kMiB), not_on_offer);
  EXPECT_EQ(why([](ArenaDescriptor&) {}, kMiB), "lent");
}

TEST(ArenaView, MemoryThatCouldShrinkOrIsNotAsOfferedIsALie) {
  const auto made = std::move(SharedArena::create(4 * kMiB, 8)).value();
  const ArenaOffer honest = made->offer();
  const auto open = [](const ArenaOffer& offer, UniqueFd fd, std::uint64_t most = 64 * kMiB) {
    const auto view = ArenaView::open(offer, fd, most);
    return view.ok() ? Error(ErrorCode::kOk, "opened") : view.error();
  };
  const auto same = [&] { return UniqueFd(::dup(made->fd())); };
  EXPECT_EQ(open(honest, same()).text(), "opened");
  const auto expectLie = [](const Error& error, const std::string& part) {
    EXPECT_EQ(error.code(), ErrorCode::kProtocol);
    EXPECT_NE(error.text().find(part), std::string::npos) << error.text();
  };
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(honest.file_bytes)), 0);
  expectLie(open(honest, std::move(unsealed)), "not sealed");
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  const UniqueFd other_end(pipes[1]);
  expectLie(open(honest, UniqueFd(pipes[0])), "not sealed");
  expectLie(open(honest, UniqueFd(::open("/dev/null", O_RDONLY))), "not sealed");
  ArenaOffer changed = honest;
  changed.file_bytes += 4096;
  expectLie(open(changed, same()), "bytes instead of");
  changed = honest;
  changed.slot_count = kArenaMaxSlots + 1;
  expectLie(open(changed, same()), "slots");
  changed.slot_count = 0;
  expectLie(open(changed, same()), "slots");
  changed = honest;
  changed.file_bytes = kArenaDataOffset;
  expectLie(open(changed, same()), "without room");

  // No lies, but not to be used.
  EXPECT_EQ(open(honest, same(), kMiB).code(), ErrorCode::kLimitExceeded);
  changed = honest;
  changed.magic[3] ^= std::byte{1};
  EXPECT_EQ(open(changed, same()).code(), ErrorCode::kSystem);
}

TEST(ArenaSender, IsUsedOnlyOnceThePeerHasAccepted) {
  ArenaOptions options;
  options.bytes = 4 * kMiB;
  options.threshold = 1000;
  int wanted = 0;
  ArenaSender sender(options, [&] { ++wanted; });
  const Message small{{}, {newBuffer(999)}};
  const Message large{{}, {newBuffer(999), newBuffer(1000), newBuffer(8 * kMiB)}};
  EXPECT_TRUE(sender.answered(true));
  EXPECT_TRUE(sender.place(small).entries().empty());
  EXPECT_FALSE(sender.wanted());
  EXPECT_TRUE(sender.place(large).entries().empty());
  EXPECT_TRUE(sender.place(large).entries().empty());
  EXPECT_TRUE(sender.wanted());
  EXPECT_EQ(wanted, 1);
  ASSERT_NE(sender.offer(), nullptr);
  EXPECT_TRUE(sender.place(large).entries().empty());
  expectOk(sender.answered(true));
  EXPECT_TRUE(sender.answered(true));  // only once
  EXPECT_TRUE(sender.answered(false));
  EXPECT_TRUE(sender.place(small).entries().empty());
  {
    const ArenaPlacement placement = sender.place(large);
    ASSERT_EQ(placement.entries().size(), 1U);
    EXPECT_EQ(placement.entries()[0].buffer, 1U);
  }
  EXPECT_EQ(sender.stats().bytes_sent, 1000U);
  EXPECT_EQ(sender.stats().fallbacks, 1U);  // 8 MiB fit no arena of 4
  sender.close();
  EXPECT_TRUE(sender.place(large).entries().empty());
}

TEST(ArenaSender, CopiesTheBuffersOfOneMessageTogether) {
  ArenaOptions options;
  options.bytes = 32 * kMiB;
  std::vector<std::shared_ptr<SharedCopy>> shared;
  ArenaSender sender(
      options, [] {}, [&](const auto& copy) { shared.push_back(copy); });
  Message message;
  for (int i = 0; i < 7; ++i)
    message.buffers.push_back(newBuffer(kMiB / 2 + static_cast<std::size_t>(i)));
  for (std::size_t i = 0; i < message.buffers.size(); ++i)
    std::memset(message.buffers[i].data, static_cast<int>(i + 1), message.buffers[i].size);
  static_cast<void>(sender.place(message));
  const std::shared_ptr<SharedArena> arena = sender.offer();
  ASSERT_NE(arena, nullptr);
  expectOk(sender.answered(true));
  EXPECT_EQ(sender.place(message).entries().size(), 7U);
  EXPECT_TRUE(shared.empty());                // 3.5 MiB are not worth a helper
  message.buffers.push_back(newBuffer(100));  // goes with the frame
  message.buffers.push_back(newBuffer(kMiB / 2));
  std::memset(message.buffers.back().data, 9, kMiB / 2);
  const ArenaPlacement placement = sender.place(message);
  ASSERT_EQ(placement.entries().size(), 8U);
  if (std::thread::hardware_concurrency() > 1) {
    ASSERT_EQ(shared.size(), 1U);
    EXPECT_FALSE(shared[0]->help(1));  // it is done
  }
  for (const ArenaPlacement::Entry& entry : placement.entries()) {
    const OwnedBuffer& buffer = message.buffers[entry.buffer];
    EXPECT_EQ(std::memcmp(arena->bytes(entry.where), buffer.data, buffer.size), 0)
        << "buffer " << entry.buffer;
  }
}

// Buffers of these sizes, and where each is to go, with a byte behind it that nobody may touch.
struct Copied {
  explicit Copied(const std::vector<std::size_t>& sizes) {
    for (const std::size_t bytes : sizes) {
      from.emplace_back(bytes);
      for (std::size_t i = 0; i < bytes; ++i)
        from.back()[i] = static_cast<std::byte>(i * 31 + i / 257 + from.size());
      to.emplace_back(bytes + 1, std::byte{0x5a});
    }
  }
  std::vector<CopyRange> ranges() {
    std::vector<CopyRange> all;
    for (std::size_t i = 0; i < from.size(); ++i)
      all.push_back({to[i].data(), from[i].data(), from[i].size()});
    return all;
  }
  void expectWhole() const {
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_TRUE(std::equal(from[i].begin(), from[i].end(), to[i].begin())) << "buffer " << i;
      EXPECT_EQ(to[i].back(), std::byte{0x5a}) << "buffer " << i;
    }
  }
  std::vector<std::vector<std::byte>> from;
  std::vector<std::vector<std::byte>> to;
};

TEST(SharedCopy, EveryByteArrivesWhoeverHelps) {
  constexpr std::size_t kPiece = SharedCopy::kPiece;
  const std::vector<std::vector<std::size_t>> messages = {
      {1},
      {kPiece},
      {kPiece + 1},
      {9 * kPiece - 7},
      {3, kPiece - 3, kPiece / 2 + 1, 5 * kPiece + 64, 1, 1, kPiece},
      {26 << 20, 100},  // past the cache
  };
  for (const std::vector<std::size_t>& sizes : messages) {
    for (int helpers = 0; helpers < 4; ++helpers) {
      Copied data(sizes);
      const auto copy = std::make_shared<SharedCopy>(data.ranges());
      std::vector<std::thread> threads;
      for (int i = 0; i < helpers; ++i) {
        threads.emplace_back([copy] {
          while (copy->help(2)) {
          }
        });
      }
      copy->finish();
      data.expectWhole();
      // Now the ranges may go: a helper that comes this late touches nothing.
      data.from.clear();
      for (auto& to : data.to)
        std::fill(to.begin(), to.end(), std::byte{0});
      EXPECT_FALSE(copy->help(1));
      for (auto& thread : threads)
        thread.join();
      for (const auto& to : data.to)
        EXPECT_EQ(std::count(to.begin(), to.end(), std::byte{0}), static_cast<long>(to.size()));
    }
  }
}

TEST(ArenaCopy, PastTheCacheFromAndToAnywhere) {
  for (std::size_t skew_to = 0; skew_to < 70; skew_to += 23) {
    for (std::size_t skew_from = 0; skew_from < 70; skew_from += 17) {
      for (const std::size_t bytes : {0, 1, 63, 64, 65, 127, 4096, 100001}) {
        std::vector<std::byte> from(bytes + skew_from);
        for (std::size_t i = 0; i < from.size(); ++i)
          from[i] = static_cast<std::byte>(i * 31 + i / 257);
        std::vector<std::byte> to(skew_to + bytes + 64, std::byte{0x5a});
        fastMemcpy(to.data() + skew_to, from.data() + skew_from, bytes, CopyWay::kPastCache);
        EXPECT_TRUE(std::equal(from.begin() + static_cast<long>(skew_from), from.end(),
                               to.begin() + static_cast<long>(skew_to)));
        EXPECT_EQ(std::count(to.begin(), to.begin() + static_cast<long>(skew_to), std::byte{0x5a}),
                  static_cast<long>(skew_to));
        EXPECT_EQ(std::count(to.end() - 64, to.end(), std::byte{0x5a}), 64);
      }
    }
  }
}

}  // namespace
}  // namespace weft::transport
