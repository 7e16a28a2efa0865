// What the loop thread's own steps throw, mostly for lack of memory, ends what they serve and
// nothing else.
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <optional>

#include "tests/transport/recorder.h"
#include "transport/auth/handshake_runner.h"
#include "transport/bulk/bulk_connection.h"
#include "transport/channel/link.h"
#include "transport/io/event_loop.h"
#include "transport/io/poll.h"
#include "transport/io/stream.h"

namespace weft::transport {
namespace {

// Readable at once; reading it throws.
class ThrowingStream : public Stream {
 public:
  ThrowingStream() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    near_ = UniqueFd(ends[0]);
    far_ = UniqueFd(ends[1]);
    EXPECT_EQ(::write(far_.get(), "x", 1), 1);
  }
  IoResult read(std::span<iovec>) override { throw std::bad_alloc(); }
  IoResult write(std::span<iovec> from, std::span<const int>) override {
    return {static_cast<std::size_t>(bytesOf(from)), 0, false};
  }
  void finishWriting() override {}
  void breakOff() override {}
  int pollFd() const override { return near_.get(); }
  const char* transportName() const override { return "test"; }

 private:
  UniqueFd near_;
  UniqueFd far_;
};

class Exceptions : public ::testing::Test {
 protected:
  // On the loop thread, and waits for it.
  void onLoop(const std::function<void()>& task) {
    std::promise<void> done;
    ASSERT_TRUE(loop->post([&] {
      task();
      done.set_value();
    }));
    ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  }
  template <typename T>
  static T outcomeOf(std::promise<T>& promise) {
    auto future = promise.get_future();
    if (future.wait_for(kPatience) == std::future_status::ready) return future.get();
    ADD_FAILURE() << "nothing was told";
    return {};
  }

  const std::shared_ptr<Stream> stream = std::make_shared<ThrowingStream>();
  const std::unique_ptr<EventLoop> loop = EventLoop::create("test").value();
};

struct NoMessages : MessageHandler {
  Result<Disposition> onHeader(std::span<const std::byte>, std::span<const std::uint64_t>,
                               std::vector<OwnedBuffer>&) override {
    return Disposition::kRefuse;
  }
  Error onMessage(std::span<const std::byte>, std::vector<OwnedBuffer>) override {
    return Error::ok();
  }
};

// The peer is not to blame, and another link goes on.
TEST_F(Exceptions, ALinkEndsAndSaysWhy) {
  const Limits limits;
  NoMessages sink;
  std::atomic<std::uint64_t> received{0};
  std::promise<LinkEnd> ended;
  std::unique_ptr<Link> link;
  onLoop([&] {
    link = std::make_unique<Link>(
        *loop, stream, "a peer", limits, FrameHandlers{sink}, 0, received,
        Link::Events{[&](const LinkEnd& end) { ended.set_value(end); }, [] {}});
  });
  const LinkEnd end = outcomeOf(ended);
  EXPECT_EQ(end.kind, LinkEnd::Kind::kBroken);
  EXPECT_TRUE(end.how.starts_with("its connection was given up after ")) << end.how;
  EXPECT_NE(end.how.find("bad_alloc"), std::string::npos) << end.how;
  onLoop([&] { link.reset(); });
}

// The channel reads by itself, too: on a tick, and before it gives a link up.
TEST_F(Exceptions, ALinkThatIsReadFromOutsideEndsAsWell) {
  const Limits limits;
  NoMessages sink;
  std::atomic<std::uint64_t> received{0};
  std::unique_ptr<Link> link;
  onLoop([&] {
    for (void (*const read)(Link&) :
         {+[](Link& one) { one.readSome(); }, +[](Link& one) { one.drain(); }}) {
      std::optional<LinkEnd> ended;
      link =
          std::make_unique<Link>(*loop, stream, "a peer", limits, FrameHandlers{sink}, 0, received,
                                 Link::Events{[&](const LinkEnd& end) { ended = end; }, [] {}});
      EXPECT_NO_THROW(read(*link));
      EXPECT_TRUE(ended && ended->how.find("given up") != std::string::npos);
      link.reset();
    }
  });
}

// Reads nothing, however readable it is.
class EmptyStream final : public ThrowingStream {
 public:
  IoResult read(std::span<iovec>) override { return {0, EAGAIN, false}; }
};

// libuv watches a descriptor once.
TEST_F(Exceptions, ALinkThatCannotBeWatchedEndsWithTheErrno) {
  const auto empty = std::make_shared<EmptyStream>();
  const Limits limits;
  NoMessages sink;
  std::atomic<std::uint64_t> received{0};
  std::promise<LinkEnd> ended;
  std::unique_ptr<Poll> first;
  std::unique_ptr<Link> link;
  onLoop([&] {
    first = std::make_unique<Poll>(*loop, empty->pollFd(), [](Poll::Ready) {});
    first->want(false, true);
    link = std::make_unique<Link>(
        *loop, empty, "a peer", limits, FrameHandlers{sink}, 0, received,
        Link::Events{[&](const LinkEnd& end) { ended.set_value(end); }, [] {}});
  });
  const LinkEnd end = outcomeOf(ended);
  EXPECT_EQ(end.kind, LinkEnd::Kind::kBroken);
  EXPECT_NE(end.how.find("(EEXIST)"), std::string::npos) << end.how;
  onLoop([&] {
    link.reset();
    first.reset();
  });
}

TEST_F(Exceptions, AHandshakeBreaks) {
  std::promise<int> ended;
  std::unique_ptr<HandshakeRunner> runner;
  onLoop([&] {
    runner =
        std::make_unique<HandshakeRunner>(*loop, stream,
                                          Handshake::dialler({"worker0", 0, 1, Digest{}, testKey()},
                                                             1, "worker1", Nonce{}, {1, 0, 0, 1}));
    runner->start(std::chrono::minutes(1), [&](HandshakeOutcome outcome) {
      EXPECT_EQ(outcome.kind, HandshakeOutcome::Kind::kBroken);
      ended.set_value(outcome.error);
    });
  });
  EXPECT_EQ(outcomeOf(ended), ENOMEM);
  onLoop([&] { runner.reset(); });
}

TEST_F(Exceptions, ABulkConnectionBreaks) {
  std::promise<int> broken;
  const auto bulk = BulkConnection::open(*loop, stream, std::make_shared<BulkCounts>(),
                                         {[] {}, [&](int error) { broken.set_value(error); }});
  std::byte place{};
  const iovec into{&place, 1};
  bulk->read({&into, 1});
  EXPECT_EQ(outcomeOf(broken), ENOMEM);
  bulk->cut();
  onLoop([] {});
}

}  // namespace
}  // namespace weft::transport
