// The loop thread asks for memory once, and there is none. Whatever it was for, the peer is reached
// or said to be lost; nobody waits for ever. Each piece of memory in turn, from the first.
#include <atomic>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>

#include "tests/transport/recorder.h"

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

}  // namespace
}  // namespace weft::transport
