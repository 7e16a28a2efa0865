// Exported memory between endpoints: it arrives without a copy, nobody sees anybody's writes, and
// what cannot go that way goes another.
#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/transport/payload.h"
#include "tests/transport/proxy.h"
#include "tests/transport/recorder.h"
#include "transport/memory/exported_block.h"

namespace weft::transport {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

OwnedBuffer exported(std::size_t size, unsigned seed) {
  auto block = ExportedBlock::create(size);
  EXPECT_TRUE(block.ok());
  const OwnedBuffer random = randomBuffer(size, seed);
  std::memcpy(block.value()->data(), random.data, size);
  std::byte* const data = block.value()->data();
  return {data, size, std::move(block).value()};
}

OwnedBuffer part(const OwnedBuffer& whole, std::size_t offset, std::size_t size) {
  return {whole.data + offset, size, whole.owner};
}

// Bytes that `work` sent without a copy.
template <typename Work>
std::uint64_t withoutCopy(Work work) {
  const std::uint64_t before = ExportedBlock::stats().bytes_sent;
  work();
  return ExportedBlock::stats().bytes_sent - before;
}

class Exported : public ::testing::Test {
 protected:
  void SetUp() override {
    seen = warmUp(*pair.a, 1);
    ASSERT_TRUE(pair.second.waitForMessages(seen));
  }
  // Sends and returns what arrived.
  std::vector<OwnedBuffer> send(std::vector<OwnedBuffer> buffers) {
    expectOk(pair.a->send(1, {bytesOf("x"), std::move(buffers)}));
    EXPECT_TRUE(pair.second.waitForMessages(++seen));
    return pair.second.messages().back().buffers;
  }

  Pair pair{Via::kUnix};
  std::size_t seen = 0;
};

TEST_F(Exported, ArrivesWithoutACopyAndIsTheReceiversOwn) {
  const OwnedBuffer mine = exported(4 * kMiB, 1);
  const std::uint64_t sum = checksum(mine);
  std::vector<OwnedBuffer> got;
  EXPECT_EQ(withoutCopy([&] { got = send({mine, newBuffer(10), mine}); }), 8 * kMiB);
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(checksum(got[0]), sum);
  EXPECT_NE(ExportedBlock::find(got[0].data, got[0].size), nullptr);
  std::memset(got[0].data, 0, kMiB);
  EXPECT_EQ(checksum(mine), sum);
  EXPECT_EQ(checksum(got[2]), sum);
  mine.data[0] ^= std::byte{1};
  EXPECT_EQ(checksum(got[2]), sum);
  EXPECT_TRUE(
      eventually([&] { return statsOf(*pair.b).bytes_received == statsOf(*pair.a).bytes_sent; }));
}

TEST_F(Exported, AfterAWriteItIsCopiedAndTheNewValueArrives) {
  const OwnedBuffer mine = exported(kMiB, 1);
  const auto first = send({mine});
  EXPECT_EQ(withoutCopy([&] { send({mine}); }), kMiB);
  mine.data[12345] ^= std::byte{1};
  const std::uint64_t sum = checksum(mine);
  std::vector<OwnedBuffer> got;
  EXPECT_EQ(withoutCopy([&] { got = send({mine}); }), 0U);
  EXPECT_EQ(checksum(got[0]), sum);
  EXPECT_NE(checksum(first[0]), sum);
}

TEST_F(Exported, PartsGoAsParts) {
  const OwnedBuffer mine = exported(kMiB, 1);
  std::vector<OwnedBuffer> got;
  const OwnedBuffer half = part(mine, 1001, kMiB / 2);
  const OwnedBuffer rest = part(mine, kMiB / 2 + 7, kMiB / 2 - 7);
  EXPECT_EQ(withoutCopy([&] { got = send({half, rest, half}); }), 2 * half.size + rest.size);
  EXPECT_EQ(checksum(got[0]), checksum(half));
  EXPECT_EQ(checksum(got[1]), checksum(rest));
  got[0].data[0] ^= std::byte{1};
  EXPECT_EQ(checksum(got[2]), checksum(half));
  // A small part would freeze the whole.
  const OwnedBuffer other = exported(kMiB, 2);
  const OwnedBuffer small = part(other, 0, 100'000);
  EXPECT_EQ(withoutCopy([&] { got = send({small}); }), 0U);
  EXPECT_EQ(checksum(got[0]), checksum(small));
}

TEST_F(Exported, ManyBlocksInOneMessage) {
  std::vector<OwnedBuffer> mine;
  for (unsigned i = 0; i < 40; ++i)
    mine.push_back(i % 2 == 0 ? exported(100'000, i) : randomBuffer(50'000 + i, i));
  std::vector<OwnedBuffer> got;
  // As many as descriptors go with one frame.
  EXPECT_EQ(withoutCopy([&] { got = send(mine); }), 16 * 100'000U);
  ASSERT_EQ(got.size(), 40U);
  for (std::size_t i = 0; i < 40; ++i)
    EXPECT_EQ(checksum(got[i]), checksum(mine[i])) << i;
}

TEST_F(Exported, ComesBackWithoutACopy) {
  const OwnedBuffer mine = exported(kMiB, 1);
  const auto got = send({mine});
  const std::size_t warm = warmUp(*pair.b, 0);
  ASSERT_TRUE(pair.first.waitForMessages(warm));
  EXPECT_EQ(withoutCopy([&] {
              expectOk(pair.b->send(0, {bytesOf("back"), {got[0]}}));
              EXPECT_TRUE(pair.first.waitForMessages(warm + 1));
            }),
            kMiB);
  EXPECT_EQ(checksum(pair.first.messages().back().buffers[0]), checksum(mine));
}

TEST_F(Exported, OutlivesItsSenderAndTheGroup) {
  OwnedBuffer mine = exported(kMiB, 1);
  const std::uint64_t sum = checksum(mine);
  const auto got = send({mine});
  mine = {};
  pair.a->close();
  pair.b->close();
  EXPECT_EQ(checksum(got[0]), sum);
}

TEST_F(Exported, AReceiverThatCannotTakeDescriptorsGetsTheBytes) {
  const OwnedBuffer mine = exported(kMiB, 1);
  // Both endpoints are in this process, so its sender must not need a descriptor either: what asks
  // for the pages' state needs one. Only descriptors beyond those two are missing.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_NE(ExportedBlock::find(mine.data, mine.size)->offer(mine.data, mine.size), std::nullopt);
  std::vector<UniqueFd> taken;
  rlimit small = old;
  small.rlim_cur = 200;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  // The receiver's loop is kept from reading until no descriptor is left.
  std::atomic<bool> held{false};
  std::atomic<bool> go{false};
  pair.b->runAfter(std::chrono::milliseconds(0), [&] {
    held = true;
    while (!go)
      std::this_thread::yield();
  });
  ASSERT_TRUE(eventually([&] { return held.load(); }));
  expectOk(pair.a->send(1, {bytesOf("x"), {mine}}));
  while (true) {
    UniqueFd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!one.valid()) break;
    taken.push_back(std::move(one));
  }
  go = true;
  // It has read by then what was there.
  std::atomic<int> turns{0};
  std::function<void()> turn = [&] {
    if (++turns < 5) pair.b->runAfter(std::chrono::milliseconds(1), turn);
  };
  pair.b->runAfter(std::chrono::milliseconds(1), turn);
  ASSERT_TRUE(eventually([&] { return turns == 5; }));
  taken.clear();  // another connection needs some, where the endpoints' spare ones do not suffice
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_TRUE(pair.second.waitForMessages(seen + 1));
  EXPECT_EQ(checksum(pair.second.messages().back().buffers[0]), checksum(mine));
  EXPECT_TRUE(pair.first.losses().empty() && pair.second.losses().empty());
  // It is not tried again.
  ++seen;
  EXPECT_EQ(withoutCopy([&] { EXPECT_EQ(checksum(send({mine})[0]), checksum(mine)); }), 0U);
}

TEST(ExportedLink, APeerThatHoldsManyMappingsHereSendsTheBytes) {
  constexpr std::size_t kMost = 10;
  Pair pair(Via::kUnix, [](EndpointOptions& options) { options.arena.max_peer_mappings = kMost; });
  std::size_t sent = warmUp(*pair.a, 1);
  ASSERT_TRUE(pair.second.waitForMessages(sent));
  const OwnedBuffer mine = exported(kMiB, 1);
  const std::uint64_t sum = checksum(mine);
  // What the recorder keeps stays mapped.
  EXPECT_EQ(withoutCopy([&] {
              for (std::size_t i = 0; i < kMost; ++i)
                expectOk(pair.a->send(1, {bytesOf("x"), {mine}}));
              ASSERT_TRUE(pair.second.waitForMessages(sent += kMost));
            }),
            kMost * kMiB);
  EXPECT_EQ(statsOf(*pair.a).reconnects, 0U);
  expectOk(pair.a->send(1, {bytesOf("x"), {mine, mine}}));
  ASSERT_TRUE(pair.second.waitForMessages(++sent));
  const auto got = pair.second.messages().back().buffers;
  EXPECT_EQ(ExportedBlock::find(got[0].data, got[0].size), nullptr);
  EXPECT_EQ(checksum(got[0]), sum);
  EXPECT_EQ(checksum(got[1]), sum);
  EXPECT_TRUE(pair.first.losses().empty() && pair.second.losses().empty());
}

TEST(ExportedLink, MappingsThatAreOverDoNotCount) {
  Pair pair(
      Via::kUnix, [](EndpointOptions& options) { options.arena.max_peer_mappings = 2; },
      [](Recorder&, Recorder& second) { second.keep = false; });
  std::size_t sent = warmUp(*pair.a, 1);
  const OwnedBuffer mine = exported(kMiB, 1);
  for (int i = 0; i < 20; ++i) {
    expectOk(pair.a->send(1, {bytesOf("x"), {mine}}));
    ASSERT_TRUE(pair.second.waitForMessages(++sent));
  }
  EXPECT_EQ(statsOf(*pair.a).reconnects, 0U);
}

TEST(ExportedLink, OverTcpItIsCopied) {
  Pair pair(Via::kTcp);
  OwnedBuffer mine;
  for (unsigned i = 1; i <= 3; ++i) {
    mine = exported(kMiB, i);
    EXPECT_EQ(withoutCopy([&] { expectOk(pair.a->send(1, {bytesOf("x"), {mine}})); }), 0U);
    ASSERT_TRUE(pair.second.waitForMessages(i));
    EXPECT_EQ(checksum(pair.second.messages().back().buffers[0]), checksum(mine));
  }
  // Nothing froze it.
  EXPECT_TRUE(ExportedBlock::find(mine.data, mine.size)->offer(mine.data, mine.size));
}

// A connection that breaks while exported memory is on its way: its bytes, as they were, go again.
TEST(ExportedLink, ABrokenConnectionLosesNothing) {
  EndpointOptions options0 = optionsFor(0, Via::kUnix);
  EndpointOptions options1 = optionsFor(1, Via::kUnix);
  options0.peer_timeout = options1.peer_timeout = std::chrono::hours(1);
  options0.reconnect_timeout = options1.reconnect_timeout = kPatience;
  Recorder first;
  Recorder second;
  const auto a = openEndpoint(options0, first);
  const auto b = openEndpoint(options1, second);
  Proxy to_b(b->address());
  Proxy to_a(a->address());
  expectOk(a->addPeer({1, "worker1", to_b.address()}));
  expectOk(b->addPeer({0, "worker0", to_a.address()}));
  std::size_t sent = warmUp(*a, 1);
  ASSERT_TRUE(second.waitForMessages(sent));
  std::vector<std::uint64_t> sums;
  for (unsigned i = 0; i < 60; ++i) {
    const OwnedBuffer mine = exported(kMiB, i);
    sums.push_back(checksum(mine));
    expectOk(a->send(1, {bytesOf("x"), {mine}}, kPatience));
    // Later than it was sent, perhaps before it has arrived.
    std::memset(mine.data, 0, kMiB);
    if (i % 10 == 3) {
      to_a.breakAll();
      to_b.breakAll();
    }
  }
  ASSERT_TRUE(second.waitForMessages(sent + sums.size()));
  const auto messages = second.messages();
  ASSERT_EQ(messages.size(), sent + sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i)
    EXPECT_EQ(checksum(messages[sent + i].buffers.at(0)), sums[i]) << i;
  EXPECT_GT(statsOf(*a).reconnects, 0U);
  EXPECT_TRUE(first.losses().empty() && second.losses().empty());
  a->close();
  b->close();
}

}  // namespace
}  // namespace weft::transport
