// Peers that prove who they are and then lie about shared memory.
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/transport/raw_client.h"
#include "transport/arena/shared_arena.h"
#include "transport/base/bytes.h"
#include "transport/frame/frame.h"
#include "transport/io/stream.h"

namespace weft::transport {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<std::byte> controlFrame(FrameKind kind, std::uint64_t sequence = 0,
                                    std::uint32_t header_bytes = 0) {
  FrameHead head;
  head.kind = kind;
  head.sequence = sequence;
  head.header_bytes = header_bytes;
  std::vector<std::byte> bytes(FrameHead::kBytes);
  encodeFrameHead(head, bytes.data());
  return bytes;
}

std::vector<std::byte> offerFrame(const ArenaOffer& offer) {
  std::vector<std::byte> bytes =
      controlFrame(FrameKind::kArenaOffer, 0, static_cast<std::uint32_t>(ArenaOffer::kBytes));
  bytes.resize(bytes.size() + ArenaOffer::kBytes);
  offer.encode(bytes.data() + FrameHead::kBytes);
  return bytes;
}

// A message of one buffer in shared memory.
std::vector<std::byte> placedFrame(std::uint64_t sequence, const ArenaDescriptor& where,
                                   std::uint64_t size) {
  FrameHead head;
  head.sequence = sequence;
  head.buffer_count = 1;
  head.buffer_bytes = size;
  std::vector<std::byte> bytes(FrameHead::kBytes + 8 + ArenaDescriptor::kBytes);
  encodeFrameHead(head, bytes.data());
  storeLittle<std::uint64_t>(bytes.data() + FrameHead::kBytes, size | kBufferInArena);
  where.encode(bytes.data() + FrameHead::kBytes + 8);
  return bytes;
}

// An endpoint of rank 0, and a peer of rank 1 whose every byte the test chooses.
class Liar : public ::testing::Test {
 protected:
  void SetUp() override {
    endpoint = openEndpoint(optionsFor(0), recorder);
    expectOk(endpoint->addPeer({1, "worker1", "weft1;tcp=127.0.0.1:9"}));
    client = std::make_unique<RawClient>(*endpoint);
    ASSERT_TRUE(client->join(identityOf(optionsFor(1)), 0, "worker0"));
  }
  void offer(const ArenaOffer& what, int fd) { client->sendWithFds(offerFrame(what), {fd}); }
  void offerHonestly() {
    arena = std::move(SharedArena::create(4 * kMiB, 16)).value();
    offer(arena->offer(), arena->fd());
    EXPECT_EQ(nextKind(), FrameKind::kArenaAccept);
  }
  FrameKind nextKind() {
    while (true) {
      const std::vector<std::byte> bytes = client->receive(FrameHead::kBytes);
      if (bytes.size() < FrameHead::kBytes) return FrameKind::kGoodbye;
      const auto head = decodeFrameHead(
          std::span<const std::byte, FrameHead::kBytes>(bytes.data(), FrameHead::kBytes), {});
      EXPECT_TRUE(head.ok());
      if (head.value().kind != FrameKind::kHeartbeat) return head.value().kind;
    }
  }
  void expectCutOff(const std::string& why) {
    ASSERT_TRUE(recorder.waitForLosses(1)) << why;
    const Error reason = recorder.losses()[0].reason;
    EXPECT_EQ(reason.code(), ErrorCode::kProtocol);
    EXPECT_NE(reason.text().find("worker 'worker1' (rank 1) is cut off: "), std::string::npos);
    EXPECT_NE(reason.text().find(why), std::string::npos) << reason.text();
    EXPECT_TRUE(client->ended());
    EXPECT_EQ(recorder.messageCount(), 0U);
  }

  Recorder recorder;
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<RawClient> client;
  std::shared_ptr<SharedArena> arena;
};

TEST_F(Liar, HonestyIsHeard) {
  offerHonestly();
  const auto block = arena->take(100'000);
  std::memset(arena->bytes(*block), 3, 100'000);
  arena->handOver(*block);
  client->send(placedFrame(1, *block, 100'000));
  ASSERT_TRUE(recorder.waitForMessages(1));
  EXPECT_EQ(recorder.messages()[0].buffers.at(0).data[99'999], std::byte{3});
  EXPECT_EQ(arena->blocksInUse(), 1U);
}

TEST_F(Liar, ABufferOutsideOfTheMemoryCutsItOff) {
  offerHonestly();
  const auto block = arena->take(100);
  client->send(placedFrame(1, {block->offset, block->slot, 0}, 4 * kMiB + 1));
  expectCutOff("a buffer outside of shared memory");
}

TEST_F(Liar, ASlotThatIsNoneCutsItOff) {
  offerHonestly();
  client->send(placedFrame(1, {arena->take(100)->offset, 16, 0}, 100));
  expectCutOff("a buffer in slot 16 of 16");
}

TEST_F(Liar, ABufferSentTwiceCutsItOff) {
  offerHonestly();
  const auto block = arena->take(100);
  std::vector<std::byte> twice(FrameHead::kBytes + 16 + 2 * ArenaDescriptor::kBytes);
  FrameHead head;
  head.sequence = 1;
  head.buffer_count = 2;
  head.buffer_bytes = 200;
  encodeFrameHead(head, twice.data());
  for (std::size_t i = 0; i < 2; ++i) {
    storeLittle<std::uint64_t>(twice.data() + FrameHead::kBytes + 8 * i, 100 | kBufferInArena);
    block->encode(twice.data() + FrameHead::kBytes + 16 + i * ArenaDescriptor::kBytes);
  }
  client->send(twice);
  expectCutOff("a block of shared memory that was not offered");
}

TEST_F(Liar, ReservedBitsCutItOff) {
  offerHonestly();
  ArenaDescriptor where = arena->take(100).value();
  where.reserved = 1;
  client->send(placedFrame(1, where, 100));
  expectCutOff("unknown form of a shared memory descriptor");
}

TEST_F(Liar, ABufferInMemoryNeverOfferedCutsItOff) {
  client->send(placedFrame(1, {kArenaDataOffset, 0, 0}, 100));
  expectCutOff("that was not offered");
}

TEST_F(Liar, AnOfferWithoutADescriptorCutsItOff) {
  ArenaOffer what;
  what.file_bytes = kArenaDataOffset + kMiB;
  what.slot_count = 4;
  client->send(offerFrame(what));
  expectCutOff("without a descriptor");
}

TEST_F(Liar, UnsealedMemoryCutsItOff) {
  UniqueFd fd(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ArenaOffer what;
  what.file_bytes = kArenaDataOffset + kMiB;
  what.slot_count = 4;
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(what.file_bytes)), 0);
  offer(what, fd.get());
  expectCutOff("not sealed against shrinking");
}

TEST_F(Liar, ASizeThatIsNotTheFilesCutsItOff) {
  arena = std::move(SharedArena::create(4 * kMiB, 16)).value();
  ArenaOffer what = arena->offer();
  what.file_bytes *= 2;
  offer(what, arena->fd());
  expectCutOff("bytes instead of");
}

TEST_F(Liar, ASecondOfferCutsItOff) {
  offerHonestly();
  offer(arena->offer(), arena->fd());
  expectCutOff("offers shared memory twice");
}

TEST_F(Liar, OtherMemoryThanSaidIsRefusedAndTheLinkStays) {
  arena = std::move(SharedArena::create(4 * kMiB, 16)).value();
  ArenaOffer what = arena->offer();
  what.magic[0] ^= std::byte{1};
  offer(what, arena->fd());
  EXPECT_EQ(nextKind(), FrameKind::kArenaRefuse);
  FrameHead head;
  head.sequence = 1;
  std::vector<std::byte> bytes(FrameHead::kBytes);
  encodeFrameHead(head, bytes.data());
  client->send(bytes);
  EXPECT_TRUE(recorder.waitForMessages(1));
}

TEST_F(Liar, AnAnswerToNoOfferCutsItOff) {
  client->send(controlFrame(FrameKind::kArenaAccept));
  expectCutOff("accepts shared memory that was not offered");
}

TEST_F(Liar, ARefusalOfNoOfferCutsItOff) {
  client->send(controlFrame(FrameKind::kArenaRefuse));
  expectCutOff("refuses shared memory that was not offered");
}

TEST_F(Liar, DescriptorsBeyondTheOneAreClosed) {
  const auto open_files = [] {
    int count = 0;
    for (int fd = 0; fd < 1000; ++fd)
      count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  };
  arena = std::move(SharedArena::create(4 * kMiB, 16)).value();
  const int before = open_files();
  std::vector<int> many(50, arena->fd());
  client->sendWithFds(offerFrame(arena->offer()), many);
  EXPECT_EQ(nextKind(), FrameKind::kArenaAccept);
  // And with frames that need none, one after the other.
  for (int i = 0; i < 20; ++i)
    client->sendWithFds(controlFrame(FrameKind::kHeartbeat), many);
  FrameHead head;
  head.sequence = 1;
  std::vector<std::byte> bytes(FrameHead::kBytes);
  encodeFrameHead(head, bytes.data());
  client->send(bytes);
  ASSERT_TRUE(recorder.waitForMessages(1));
  // So many wait for a frame that names them.
  EXPECT_LE(open_files(), before + static_cast<int>(2 * kMaxFds));
}

// A message of buffers in exported memory: which of its descriptors, offset, size.
std::vector<std::byte> exportedFrame(std::uint64_t sequence,
                                     const std::vector<std::array<std::uint64_t, 3>>& places) {
  FrameHead head;
  head.sequence = sequence;
  head.buffer_count = static_cast<std::uint32_t>(places.size());
  for (const auto& place : places)
    head.buffer_bytes += place[2];
  std::vector<std::byte> bytes(FrameHead::kBytes + places.size() * (8 + ArenaDescriptor::kBytes));
  encodeFrameHead(head, bytes.data());
  std::byte* at = bytes.data() + FrameHead::kBytes;
  for (const auto& place : places) {
    storeLittle<std::uint64_t>(at, place[2] | kBufferExported);
    at += 8;
  }
  for (const auto& place : places) {
    ArenaDescriptor{place[1], static_cast<std::uint32_t>(place[0]), 0}.encode(at);
    at += ArenaDescriptor::kBytes;
  }
  return bytes;
}

UniqueFd exportedMemory(int seals = F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE) {
  UniqueFd fd(::memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::vector<char> bytes(kMiB, 3);
  EXPECT_EQ(::write(fd.get(), bytes.data(), kMiB), static_cast<ssize_t>(kMiB));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST_F(Liar, HonestyAboutExportedMemoryIsHeard) {
  const UniqueFd one = exportedMemory();
  const UniqueFd two = exportedMemory();
  client->sendWithFds(exportedFrame(1, {{0, 0, kMiB}, {1, 17, 5000}, {0, kMiB - 1, 1}}),
                      {one.get(), two.get()});
  ASSERT_TRUE(recorder.waitForMessages(1));
  const auto buffers = recorder.messages()[0].buffers;
  ASSERT_EQ(buffers.size(), 3U);
  EXPECT_EQ(buffers[0].data[kMiB - 1], std::byte{3});
  EXPECT_EQ(buffers[1].data[4999], std::byte{3});
  EXPECT_EQ(buffers[2].data[0], std::byte{3});
}

TEST_F(Liar, ExportedMemoryWithoutADescriptorCutsItOff) {
  client->send(exportedFrame(1, {{0, 0, 100}}));
  expectCutOff("without a descriptor");
}

TEST_F(Liar, FewerDescriptorsThanItNamesCutItOff) {
  client->sendWithFds(exportedFrame(1, {{0, 0, 100}, {1, 0, 100}}), {exportedMemory().get()});
  expectCutOff("without a descriptor");
}

TEST_F(Liar, DescriptorsOutOfOrderCutItOff) {
  const UniqueFd fd = exportedMemory();
  client->sendWithFds(exportedFrame(1, {{1, 0, 100}}), {fd.get(), fd.get()});
  expectCutOff("number 1, but only 0 were sent before");
}

TEST_F(Liar, ExportedMemoryThatCanShrinkCutsItOff) {
  client->sendWithFds(exportedFrame(1, {{0, 0, 100}}), {exportedMemory(F_SEAL_FUTURE_WRITE).get()});
  expectCutOff("not sealed against shrinking");
}

TEST_F(Liar, ExportedMemoryThatIsStillWrittenCutsItOff) {
  client->sendWithFds(exportedFrame(1, {{0, 0, 100}}), {exportedMemory(F_SEAL_SHRINK).get()});
  expectCutOff("not sealed against writing");
}

TEST_F(Liar, ExportedMemoryThatIsTooShortCutsItOff) {
  client->sendWithFds(exportedFrame(1, {{0, 1, kMiB}}), {exportedMemory().get()});
  expectCutOff("outside of exported memory");
}

TEST_F(Liar, AnOffsetThatOverflowsCutsItOff) {
  client->sendWithFds(exportedFrame(1, {{0, ~std::uint64_t{0} - 50, 100}}),
                      {exportedMemory().get()});
  expectCutOff("outside of exported memory");
}

// A receiver that scribbles over all that it can write: it only loses what was sent to it.
TEST(LyingReceiver, CannotHarmTheSender) {
  Recorder recorder;
  const auto endpoint = openEndpoint(optionsFor(0), recorder);
  expectOk(endpoint->addPeer({1, "worker1", "weft1;tcp=127.0.0.1:9"}));
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(identityOf(optionsFor(1)), 0, "worker0"));
  const OwnedBuffer mine = newBuffer(kMiB);
  std::memset(mine.data, 5, kMiB);
  expectOk(endpoint->send(1, {bytesOf("x"), {mine}}));
  // The offer follows that message; its descriptor comes with its first byte.
  UniqueFd fd;
  std::vector<std::byte> stream;
  const std::size_t all = FrameHead::kBytes + 8 + 1 + kMiB + FrameHead::kBytes + ArenaOffer::kBytes;
  while (stream.size() < all) {
    const std::vector<std::byte> some = client.receiveWithFd(all - stream.size(), fd);
    ASSERT_FALSE(some.empty());
    stream.insert(stream.end(), some.begin(), some.end());
  }
  ASSERT_TRUE(fd.valid());
  const ArenaOffer offer = ArenaOffer::decode(std::span<const std::byte, ArenaOffer::kBytes>(
      stream.data() + all - ArenaOffer::kBytes, ArenaOffer::kBytes));
  EXPECT_NE(::ftruncate(fd.get(), 4096), 0);  // sealed
  void* memory = ::mmap(nullptr, offer.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  client.send(controlFrame(FrameKind::kArenaAccept));
  ASSERT_TRUE(eventually([&] {
    expectOk(endpoint->send(1, {bytesOf("x"), {{mine.data, 100'000, mine.owner}}}));
    return endpoint->stats().peers.at(0).arena_bytes_sent > 0;
  }));
  for (int i = 0; i < 200; ++i) {
    expectOk(endpoint->send(1, {bytesOf("x"), {mine, mine}}));
    // All is free, then nothing is, then nonsense; and the magic and some bytes of blocks too.
    std::memset(memory, i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 0xEE, kArenaSlotsOffset + 4096);
    std::memset(static_cast<std::byte*>(memory) + kArenaDataOffset, i, 4096);
  }
  EXPECT_GT(endpoint->stats().peers.at(0).arena_bytes_sent, 10 * kMiB);
  for (std::size_t i = 0; i < kMiB; ++i)
    ASSERT_EQ(mine.data[i], std::byte{5});
  ::munmap(memory, offer.file_bytes);
  endpoint->close(std::chrono::milliseconds(100));
}

}  // namespace
}  // namespace weft::transport
