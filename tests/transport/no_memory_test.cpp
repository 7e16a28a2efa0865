// A thread asks for memory once, and there is none. Whatever it was for, the peer is reached or
// said to be lost, and what was taken is sent; nobody waits for ever. Each piece of memory in turn,
// from the first.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/between.h"
#include "tests/transport/recorder.h"
#include "transport/arena/arena_placement.h"
#include "transport/base/thrown.h"
#include "transport/channel/outbox.h"

namespace {

thread_local bool counts = false;   // of the thread in question
std::atomic<long> pieces_left{-1};  // before one is missing; negative: none is

}  // namespace

// NOLINTBEGIN(misc-definitions-in-headers)
void* operator new(std::size_t size) {
  if (counts && pieces_left.load() >= 0 && pieces_left.fetch_sub(1) == 0) throw std::bad_alloc();
  void* const made = std::malloc(size == 0 ? 1 : size);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
// NOLINTEND(misc-definitions-in-headers)

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

// The pieces of this endpoint's loop thread count.
void countPieces(Endpoint& endpoint) {
  const auto done = std::make_shared<std::promise<void>>();
  std::future<void> counting = done->get_future();
  endpoint.runAfter(milliseconds(0), [done] {
    counts = true;
    done->set_value();
  });
  counting.wait();
}

enum class Side { kDialler, kAcceptor };

class NoMemory : public ::testing::TestWithParam<Via> {
 protected:
  NoMemory() {
    setLogSink([](LogLevel, const std::string&) {});
    setLogLevel(LogLevel::kDebug);  // the text of a line is memory, too
  }
  ~NoMemory() override {
    setLogLevel(LogLevel::kWarning);
    setLogSink(nullptr);
  }

  // One that dials another; the pieces of that side count. Returns those that were not asked for.
  static long dial(long pieces, Side side) {
    const auto adjust = [](EndpointOptions& options) {
      options.heartbeat_interval = milliseconds(30);
      options.peer_timeout = options.reconnect_timeout = milliseconds(800);
      options.connect_timeout = options.handshake_timeout = milliseconds(1000);
    };
    Recorder first;
    Recorder second;
    EndpointOptions options0 = optionsFor(0, GetParam());
    EndpointOptions options1 = optionsFor(1, GetParam());
    adjust(options0);
    adjust(options1);
    const auto a = openEndpoint(options0, first);
    const auto b = openEndpoint(options1, second);
    expectOk(b->addPeer(infoOf(0, *a)));
    countPieces(side == Side::kDialler ? *a : *b);
    pieces_left = pieces;
    expectOk(a->addPeer(infoOf(1, *b)));
    const Error refused = a->send(1, textMessage("here"));
    EXPECT_TRUE(refused || eventually([&] {
                  return second.messageCount() + first.losses().size() + second.losses().size() > 0;
                }))
        << "the piece of memory behind " << pieces;
    const long left = pieces_left.exchange(-1);
    b->close();
    a->close();
    return left;
  }
  static void dialWithoutEachPiece(Side side) {
    long pieces = 0;
    while (dial(pieces, side) < 0 && !HasFailure())
      ++pieces;
    EXPECT_GT(pieces, 20);
  }
};

INSTANTIATE_TEST_SUITE_P(Each, NoMemory, ::testing::Values(Via::kUnix, Via::kTcp, Via::kTls),
                         viaName);

TEST_P(NoMemory, WhileAPeerIsDialled) { dialWithoutEachPiece(Side::kDialler); }

// Whoever is dialled has a state to keep right as well.
TEST_P(NoMemory, WhileAPeerIsTakenIn) { dialWithoutEachPiece(Side::kAcceptor); }

// A side whose connection breaks, and whose loop thread asks for so much memory.
long breakConnection(Via via, long pieces) {
  Between between(via, [](EndpointOptions& options) {
    options.heartbeat_interval = milliseconds(30);
    options.peer_timeout = options.reconnect_timeout = milliseconds(800);
    options.connect_timeout = options.handshake_timeout = milliseconds(1000);
  });
  expectOk(between.a->send(1, textMessage("one")));
  EXPECT_TRUE(between.second.waitForMessages(1));
  countPieces(*between.a);
  pieces_left = pieces;
  between.breakAll();
  const Error refused = between.a->send(1, textMessage("two"));
  EXPECT_TRUE(refused || eventually([&] {
                return between.second.messageCount() > 1 || !between.first.losses().empty() ||
                       !between.second.losses().empty();
              }))
      << "the piece of memory behind " << pieces;
  return pieces_left.exchange(-1);
}

TEST_P(NoMemory, WhileAConnectionIsMadeAgain) {
  long pieces = 0;
  while (breakConnection(GetParam(), pieces) < 0 && !HasFailure())
    ++pieces;
  EXPECT_GT(pieces, 20);
}

// The handler is told, and close() returns.
long losePeer(Via via, long pieces, bool goodbye) {
  constexpr std::size_t kLarge = 300'000;
  Pair pair(
      via,
      [](EndpointOptions& options) {
        options.bulk.threshold = kLarge / 2;
        options.heartbeat_interval = milliseconds(30);
        options.peer_timeout = options.reconnect_timeout = milliseconds(800);
      },
      [](Recorder& first, Recorder&) {
        first.react_to_loss = [](const PeerLoss&) { counts = false; };  // it needs memory itself
      });
  std::size_t sent = 0;
  EXPECT_TRUE(eventually([&] {
    expectOk(pair.a->send(1, {bytesOf("warm"), {newBuffer(kLarge)}}));
    pair.second.waitForMessages(++sent);  // a flood would delay the bulk connection
    return statsOf(*pair.a).arena_bytes_sent + statsOf(*pair.a).bulk_bytes_sent > 0;
  }));
  countPieces(*pair.a);
  pieces_left = pieces;
  if (goodbye) {
    pair.b->close(milliseconds(100));
  } else {
    pair.a->losePeer(1, {ErrorCode::kPeerLost, "it is lost, for a reason that takes some memory"});
  }
  EXPECT_TRUE(eventually([&] { return !pair.first.losses().empty(); }))
      << "the piece of memory behind " << pieces;
  const long left = pieces_left.exchange(-1);
  pair.a->close();
  return left;
}

TEST_P(NoMemory, WhileAPeerIsLost) {
  for (const bool goodbye : {false, true}) {
    long pieces = 0;
    while (losePeer(GetParam(), pieces, goodbye) < 0 && !HasFailure())
      ++pieces;
    EXPECT_GT(pieces, 2);
  }
}

// A message is refused and nothing is upset, or it arrives.
TEST_P(NoMemory, WhileAThreadSends) {
  constexpr std::size_t kLarge = 300'000;
  Pair pair(GetParam(), [](EndpointOptions& options) { options.bulk.threshold = kLarge / 2; });
  pair.second.keep = false;
  std::size_t sent = 0;
  // Until large messages go the way that they have from then on.
  EXPECT_TRUE(eventually([&] {
    expectOk(pair.a->send(1, {bytesOf("warm"), {newBuffer(kLarge)}}));
    EXPECT_TRUE(pair.second.waitForMessages(++sent));
    return statsOf(*pair.a).arena_bytes_sent + statsOf(*pair.a).bulk_bytes_sent > 0;
  }));
  for (const bool large : {false, true}) {
    long left = -1;
    for (long pieces = 0; left < 0 && !HasFailure(); ++pieces) {
      Message message = textMessage("counted");
      if (large) message.buffers.push_back(newBuffer(kLarge));
      Error refused;
      pieces_left = pieces;
      counts = true;
      const auto thrown = thrownBy([&] { refused = pair.a->send(1, std::move(message)); });
      counts = false;
      left = pieces_left.exchange(-1);
      EXPECT_FALSE(thrown) << *thrown;
      if (!refused) ++sent;
      expectOk(pair.a->send(1, textMessage("after")));
      EXPECT_TRUE(pair.second.waitForMessages(++sent)) << "the piece of memory behind " << pieces;
      EXPECT_TRUE(pair.first.losses().empty() && pair.second.losses().empty());
    }
  }
  EXPECT_EQ(pair.second.messageCount(), sent);
}

// Takes everything.
class TakingStream final : public Stream {
 public:
  std::string written;
  std::function<void()> during_write;

  IoResult write(std::span<iovec> from, std::span<const int>) override {
    if (during_write) std::exchange(during_write, nullptr)();
    const bool counted = std::exchange(counts, false);
    for (const iovec& part : from)
      written.append(static_cast<const char*>(part.iov_base), part.iov_len);
    counts = counted;
    return {static_cast<std::size_t>(bytesOf(from)), 0, false};
  }
  IoResult read(std::span<iovec>) override { return {0, EAGAIN, false}; }
  void finishWriting() override {}
  void breakOff() override {}
  int pollFd() const override { return -1; }
  const char* transportName() const override { return "scripted"; }
};

// A stream breaks while a thread writes a tensor in exported memory to it, and others wait.
TEST(NoMemoryOutbox, WhatHasANumberIsWrittenToTheNextStreamInOrder) {
  constexpr std::size_t kBytes = ExportedBlock::kMinBytes;
  const auto arena = SharedArena::create(kBytes, 64).value();
  const auto block = ExportedBlock::create(kBytes).value();
  const Limits limits;
  const auto exported = [&](const std::string& text) {
    Message message = textMessage(text);
    message.buffers.push_back({block->data(), kBytes, block});
    ArenaPlacement placement(arena);
    EXPECT_TRUE(placement.addExported(0, message.buffers[0], block));
    return std::move(OutFrame::message(std::move(message), limits, std::move(placement))).value();
  };
  long pieces = 0;
  for (long left = -1; left < 0 && !::testing::Test::HasFailure(); ++pieces) {
    SCOPED_TRACE("the piece of memory behind " + std::to_string(pieces));
    Session session;
    Outbox outbox(limits, session, "worker 'x' (rank 1)", [] {});
    std::vector<std::shared_ptr<TakingStream>> streams;
    for (int i = 0; i < 4; ++i)
      streams.push_back(std::make_shared<TakingStream>());
    std::size_t used = 0;
    outbox.attach(streams[used]);
    OutFrame zero = exported("zero,");
    OutFrame one = exported("one,");
    OutFrame two = exported("two,");
    std::size_t taken = 0;
    const auto send = [&](OutFrame frame) {
      static_cast<void>(thrownBy([&] {
        if (!outbox.send(std::move(frame), {})) ++taken;
      }));
    };
    expectOk(outbox.send(std::move(zero), {}));
    streams[used]->during_write = [&] {
      send(std::move(two));
      outbox.detach();
      outbox.attach(streams[++used]);
    };
    pieces_left = pieces;
    counts = true;
    send(std::move(one));
    Outbox::Flushed flushed = Outbox::Flushed::kBusy;
    int error = 0;
    while (used + 1 < streams.size()) {
      flushed = outbox.flush(error);
      if (flushed != Outbox::Flushed::kBroken) break;
      outbox.detach();
      outbox.attach(streams[++used]);
    }
    counts = false;
    left = pieces_left.exchange(-1);
    EXPECT_EQ(flushed, Outbox::Flushed::kDrained);
    EXPECT_EQ(outbox.lastSequence(), taken + 1);
    const std::string& written = streams[used]->written;
    std::size_t found = 0;
    for (std::size_t at = 0; const char* text : {"zero,", "one,", "two,"}) {
      const std::size_t here = written.find(text, at);
      if (here == std::string::npos) continue;
      ++found;
      at = here;
    }
    EXPECT_EQ(found, taken + 1);
    outbox.shut({ErrorCode::kShutdown, "over"});
    EXPECT_TRUE(outbox.takeUnsent().has_value());
  }
  EXPECT_GT(pieces, 5);
}

}  // namespace
}  // namespace weft::transport
