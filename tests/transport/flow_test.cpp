// Queues, back-pressure, discarding, and closing with work in hand.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/transport/payload.h"
#include "tests/transport/recorder.h"
#include "transport/channel/link.h"
#include "transport/frame/out_frame.h"
#include "transport/io/event_loop.h"
#include "transport/io/socket.h"
#include "transport/io/stream.h"

#include "tests/support/waiting.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

// Holds the receiving loop thread inside its handler until opened.
class Gate {
 public:
  void open() {
    if (!opened_.exchange(true)) promise_.set_value();
  }
  void pass() { future_.wait_for(kPatience); }
  ~Gate() { open(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
  std::atomic<bool> opened_{false};
};

bool readable(const Stream& stream, std::chrono::milliseconds wait) {
  pollfd one{stream.pollFd(), POLLIN, 0};
  return ::poll(&one, 1, static_cast<int>(wait.count())) == 1;
}

std::pair<UniqueFd, UniqueFd> tcpPair() {
  Result<BoundSocket> bound = listenTcp("127.0.0.1");
  EXPECT_TRUE(bound.ok());
  Connecting connecting = connectTcp("127.0.0.1", bound.value().port);
  pollfd listening{bound.value().fd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&listening, 1, 10'000), 1);
  const int accepted =
      ::accept4(bound.value().fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  return {UniqueFd(accepted), std::move(connecting.fd)};
}

TEST(Flow, ATcpStreamWakesItsReaderWhenItWasToldTo) {
  auto [near, far] = tcpPair();
  SocketStream reader(std::move(near), "tcp");
  SocketStream writer(std::move(far), "tcp");
  std::vector<std::byte> bytes(600'000);
  const auto write = [&](std::size_t count) {
    iovec part{bytes.data(), count};
    EXPECT_EQ(writer.write({&part, 1}, {}).count, count);
  };
  reader.wakeAt(100'000);
  write(1000);
  EXPECT_FALSE(readable(reader, milliseconds(50)));
  write(99'000);
  EXPECT_TRUE(readable(reader, milliseconds(10'000)));
  iovec into{bytes.data(), bytes.size()};
  EXPECT_EQ(reader.read({&into, 1}).count, 100'000U);
  write(10);
  EXPECT_FALSE(readable(reader, milliseconds(50)));
  reader.wakeAt(1);  // also for what is there already
  EXPECT_TRUE(readable(reader, milliseconds(10'000)));
  EXPECT_EQ(reader.read({&into, 1}).count, 10U);
  reader.wakeAt(500'000);
  write(10);
  writer.finishWriting();  // the end is told whatever was wished for
  EXPECT_TRUE(readable(reader, milliseconds(10'000)));
}

// Takes or discards what a Link reads.
struct CountingSink : MessageHandler {
  Result<Disposition> onHeader(std::span<const std::byte>, std::span<const std::uint64_t> sizes,
                               std::vector<OwnedBuffer>& buffers) override {
    fillBuffers(sizes, buffers);
    return wanted ? Disposition::kAccept : Disposition::kDiscard;
  }
  void onDataFrame(const FrameHead&) override { ++taken; }
  Error onMessage(std::span<const std::byte>, std::vector<OwnedBuffer> buffers) override {
    sum = checksum(buffers.at(0));
    return Error::ok();
  }
  std::atomic<bool> wanted{true};
  std::atomic<std::uint64_t> sum{0};
  std::atomic<int> taken{0};
};

std::vector<std::byte> frameOf(const OwnedBuffer& buffer, std::uint64_t sequence) {
  OutFrame frame = OutFrame::message({bytesOf("x"), {buffer}}, Limits()).value();
  frame.seal(sequence, 0);
  std::array<iovec, 8> parts;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0, count = frame.gather(parts); i < count; ++i) {
    const auto* first = static_cast<const std::byte*>(parts[i].iov_base);
    bytes.insert(bytes.end(), first, first + parts[i].iov_len);
  }
  return bytes;
}

// A reader that waited for more than is to come would wait for ever: nothing follows.
TEST(Flow, ALargeMessageThatTricklesInOverTcpIsReadToTheLastByte) {
  constexpr std::size_t kPiece = std::size_t{512} << 10;
  auto [near, far] = tcpPair();
  auto loop = EventLoop::create("test").value();
  const Limits limits;
  CountingSink sink;
  std::atomic<std::uint64_t> received{0};
  std::shared_ptr<Link> link;
  loop->post([&, stream = std::make_shared<SocketStream>(std::move(near), "tcp")] {
    link = std::make_shared<Link>(*loop, stream, "a peer", limits, FrameHandlers{sink}, 0, received,
                                  Link::Events{[](const LinkEnd&) {}, [] {}});
  });
  SocketStream writer(std::move(far), "tcp");
  std::uint64_t sequence = 0;
  for (const std::size_t size : {kPiece + 1, 2 * kPiece, 2 * kPiece + 1, 5 * kPiece - 1}) {
    for (const bool wanted : {true, false}) {
      if (HasFailure()) break;
      sink.wanted = wanted;
      const OwnedBuffer large = randomBuffer(size, static_cast<unsigned>(sequence + 1));
      std::vector<std::byte> bytes = frameOf(large, ++sequence);
      for (std::size_t at = 0; at < bytes.size();) {
        iovec part{bytes.data() + at, std::min<std::size_t>(bytes.size() - at, 100'000)};
        const IoResult result = writer.write({&part, 1}, {});
        EXPECT_TRUE(result.error == 0 || result.error == EAGAIN);
        at += result.count;
        takes(milliseconds(1));
      }
      EXPECT_TRUE(eventually([&] { return sink.taken == static_cast<int>(sequence); }))
          << size << " bytes, of which " << received << " of all were read";
      if (wanted) {
        EXPECT_TRUE(eventually([&] { return sink.sum == checksum(large); }));
      }
    }
  }
  std::promise<void> gone;
  loop->post([&] {
    link.reset();
    gone.set_value();
  });
  ASSERT_EQ(gone.get_future().wait_for(kPatience), std::future_status::ready);
  loop->stop();
}

TEST(Flow, ASenderWaitsForRoomAndGoesOnWhenThereIsSome) {
  Gate gate;
  Pair pair(
      Via::kUnix,
      [](EndpointOptions& options) {
        options.limits.max_queued_bytes = 1 << 20;
        options.heartbeat_interval = milliseconds(10'000);
        options.peer_timeout = milliseconds(60'000);
      },
      [&](Recorder&, Recorder& second) {
        second.keep = false;
        second.react = [&](const Recorder::Received&) { gate.pass(); };
      });
  expectOk(pair.a->send(1, textMessage("stall")));
  // Fills the sockets' buffers and then the queue.
  int sent = 0;
  Error full;
  while (!full && sent < 1000) {
    full = pair.a->send(1, {bytesOf("x"), {newBuffer(256 << 10)}}, milliseconds(50));
    if (!full) ++sent;
  }
  ASSERT_EQ(full.code(), ErrorCode::kTimeout);
  EXPECT_NE(full.text().find("worker 'worker1' (rank 1)"), std::string::npos);
  EXPECT_NE(full.text().find("RESOURCE_EXHAUSTED"), std::string::npos) << full.text();
  EXPECT_LE(pair.a->stats().peers[0].queued_bytes, std::size_t{1} << 20);
  EXPECT_GT(pair.a->stats().peers[0].queued_bytes, std::size_t{512} << 10);

  std::thread patient([&] {
    expectOk(pair.a->send(1, {bytesOf("y"), {newBuffer(256 << 10)}}, kPatience));
  });
  gate.open();
  patient.join();
  // The refused one was not delivered: just the first, the accepted ones, and the last.
  EXPECT_TRUE(pair.second.waitForMessages(static_cast<std::size_t>(sent) + 2));
}

TEST(Flow, AWaitingSenderLearnsThatItsPeerIsLost) {
  Gate gate;
  Pair pair(
      Via::kUnix, [](EndpointOptions& options) { options.limits.max_queued_bytes = 1 << 20; },
      [&](Recorder&, Recorder& second) {
        second.keep = false;
        second.react = [&](const Recorder::Received& received) {
          if (received.header == "stall") gate.pass();
        };
        second.decide = [](std::int32_t, std::span<const std::byte> header,
                           std::span<const std::uint64_t>) {
          return textOf(header) == "poison" ? Disposition::kRefuse : Disposition::kAccept;
        };
      });
  expectOk(pair.a->send(1, textMessage("stall")));
  expectOk(pair.a->send(1, textMessage("poison")));
  Error full;
  while (!full)
    full = pair.a->send(1, {bytesOf("x"), {newBuffer(256 << 10)}}, milliseconds(20));
  std::promise<void> waiting;
  std::thread patient([&] {
    waiting.set_value();
    const Error error = pair.a->send(1, {bytesOf("y"), {newBuffer(1 << 20)}}, kPatience);
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.text();
  });
  waiting.get_future().wait();
  gate.open();
  patient.join();
  ASSERT_TRUE(pair.first.waitForLosses(1));
  // What was accepted and not written is reported, before the loss.
  ASSERT_FALSE(pair.first.failed().empty());
  EXPECT_EQ(pair.first.failed().back().second.code(), ErrorCode::kPeerLost);
}

TEST(Flow, AMessageLargerThanTheQueueStillGoes) {
  Pair pair(Via::kUnix, [](EndpointOptions& options) { options.limits.max_queued_bytes = 1000; });
  expectOk(pair.a->send(1, {bytesOf("big"), {newBuffer(8 << 20)}}));
  EXPECT_TRUE(pair.second.waitForMessages(1));
}

TEST(Flow, DiscardedMessagesAreNotDeliveredAndOthersAre) {
  Pair pair(Via::kUnix, {}, [](Recorder&, Recorder& second) {
    second.decide = [](std::int32_t, std::span<const std::byte> header,
                       std::span<const std::uint64_t>) {
      return textOf(header) == "no" ? Disposition::kDiscard : Disposition::kAccept;
    };
  });
  for (int i = 0; i < 10; ++i) {
    expectOk(pair.a->send(1, {bytesOf("no"), {newBuffer(1 << 20)}}));
    expectOk(pair.a->send(1, {bytesOf("yes"), {newBuffer(10)}}));
  }
  ASSERT_TRUE(pair.second.waitForMessages(10));
  for (const auto& message : pair.second.messages())
    EXPECT_EQ(message.header, "yes");
}

TEST(Flow, ARefusedMessageEndsTheLinkOnBothSides) {
  Pair pair(Via::kUnix, {}, [](Recorder&, Recorder& second) {
    second.decide = [](std::int32_t, std::span<const std::byte>, std::span<const std::uint64_t>) {
      return Disposition::kRefuse;
    };
  });
  expectOk(pair.a->send(1, textMessage("gibberish")));
  ASSERT_TRUE(pair.second.waitForLosses(1));
  EXPECT_EQ(pair.second.losses()[0].reason.code(), ErrorCode::kProtocol);
  ASSERT_TRUE(pair.first.waitForLosses(1));
  EXPECT_EQ(pair.first.losses()[0].reason.code(), ErrorCode::kPeerLost);
}

TEST(Flow, AHandlerThatCannotTakeAMessageLosesThePeerNotTheProcess) {
  Pair pair(Via::kUnix, {}, [](Recorder&, Recorder& second) {
    second.decide = [](std::int32_t, std::span<const std::byte>,
                       std::span<const std::uint64_t>) -> Disposition { throw std::bad_alloc(); };
  });
  expectOk(pair.a->send(1, textMessage("too much")));
  ASSERT_TRUE(pair.second.waitForLosses(1));
  EXPECT_NE(pair.second.losses()[0].reason.text().find("bad_alloc"), std::string::npos);
}

TEST(Flow, AHandlerThatThrowsAtAMessageLosesThatPeerOnly) {
  Recorder third;
  Pair pair(Via::kUnix, {}, [](Recorder&, Recorder& second) {
    second.react = [](const Recorder::Received& received) {
      if (received.header == "bad") throw std::runtime_error("no room for it");
    };
  });
  const auto c = openEndpoint(optionsFor(2), third);
  expectOk(c->addPeer(infoOf(1, *pair.b)));
  expectOk(pair.b->addPeer(infoOf(2, *c)));
  expectOk(pair.a->send(1, textMessage("bad")));
  ASSERT_TRUE(pair.second.waitForLosses(1));
  const PeerLoss loss = pair.second.losses()[0];
  EXPECT_EQ(loss.rank, 0);
  EXPECT_NE(loss.reason.text().find("could not be taken (no room for it)"), std::string::npos)
      << loss.reason.text();
  ASSERT_TRUE(pair.first.waitForLosses(1));
  expectOk(c->send(1, textMessage("good")));
  expectOk(pair.b->send(2, textMessage("good")));
  EXPECT_TRUE(pair.second.waitForMessages(1));
  EXPECT_TRUE(third.waitForMessages(1));
  pair.b->close();
}

TEST(Flow, AHandlerThatThrowsAtTheEndOfAPeerIsToldTheRestAndDoesNotHoldUpClose) {
  Gate gate;
  std::atomic<int> told{0};
  const auto fail = [&] {
    ++told;
    throw std::runtime_error("an application's own");
  };
  Pair pair(Via::kUnix, {}, [&](Recorder& first, Recorder& second) {
    second.keep = false;
    second.react = [&](const Recorder::Received&) { gate.pass(); };
    first.react_to_send_failure = fail;
    first.react_to_loss = [&](const PeerLoss&) { fail(); };
  });
  expectOk(pair.a->send(1, textMessage("stall")));
  for (int i = 0; i < 2; ++i)
    expectOk(pair.a->send(1, {bytesOf("never"), {newBuffer(64 << 20)}}));
  pair.a->losePeer(1, Error(ErrorCode::kPeerLost, "given up"));
  EXPECT_TRUE(eventually([&] { return told >= 3; })) << told;
  const auto begun = std::chrono::steady_clock::now();
  pair.a->close(std::chrono::seconds(15));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
  gate.open();
}

TEST(Flow, CloseWritesWhatIsQueuedAndSaysGoodbye) {
  Pair pair;
  for (int i = 0; i < 50; ++i)
    expectOk(pair.a->send(1, {bytesOf(std::to_string(i)), {newBuffer(1 << 20)}}));
  pair.a->close(milliseconds(20'000));
  ASSERT_TRUE(pair.second.waitForLosses(1));
  EXPECT_EQ(pair.second.messageCount(), 50U);
  EXPECT_EQ(pair.second.losses()[0].reason.code(), ErrorCode::kPeerClosed);
  EXPECT_TRUE(pair.first.losses().empty());
  EXPECT_EQ(pair.a->send(1, textMessage("late")).code(), ErrorCode::kShutdown);
  EXPECT_EQ(pair.b->send(0, textMessage("late")).code(), ErrorCode::kPeerClosed);
  pair.a->close();
}

TEST(Flow, CloseOfTheFirstMessageStillConnects) {
  Pair pair;
  expectOk(pair.a->send(1, textMessage("only")));
  pair.a->close(milliseconds(20'000));
  ASSERT_TRUE(pair.second.waitForMessages(1));
}

TEST(Flow, CloseGivesUpOnAStalledPeerAfterItsLinger) {
  Gate gate;
  std::promise<void> stalls;
  Pair pair(Via::kUnix, {}, [&](Recorder&, Recorder& second) {
    second.keep = false;
    second.react = [&](const Recorder::Received&) {
      stalls.set_value();
      gate.pass();
    };
  });
  expectOk(pair.a->send(1, textMessage("stall")));
  stalls.get_future().wait();
  expectOk(pair.a->send(1, {bytesOf("never"), {newBuffer(64 << 20)}}));
  pair.a->close(milliseconds(100));
  ASSERT_EQ(pair.first.failed().size(), 1U);
  EXPECT_EQ(pair.first.failed()[0].first, "never");
  EXPECT_EQ(pair.first.failed()[0].second.code(), ErrorCode::kShutdown);
  EXPECT_TRUE(pair.first.losses().empty());
  gate.open();
}

TEST(Flow, BothMayCloseAtOnceWhileOthersSend) {
  for (int round = 0; round < 30; ++round) {
    Pair pair(round % 2 == 0 ? Via::kUnix : Via::kTcp,
              [](EndpointOptions& options) { options.limits.max_queued_bytes = 4 << 20; });
    std::atomic<bool> stop{false};
    std::vector<std::thread> senders;
    for (int t = 0; t < 2; ++t) {
      senders.emplace_back([&] {
        while (!stop) {
          if (pair.a->send(1, {bytesOf("x"), {newBuffer(50'000)}}, milliseconds(10)))
            std::this_thread::yield();
          if (pair.b->send(0, {bytesOf("y"), {newBuffer(50)}}, milliseconds(10)))
            std::this_thread::yield();
        }
      });
    }
    EXPECT_TRUE(pair.first.waitForMessages(20));
    std::thread closer([&] { pair.a->close(); });
    pair.b->close();
    closer.join();
    stop = true;
    for (std::thread& sender : senders)
      sender.join();
  }
}

TEST(Flow, PeersMayBeRemovedWhileTheEndpointCloses) {
  for (int round = 0; round < 100; ++round) {
    Pair pair;
    expectOk(pair.a->send(1, textMessage("x")));
    if (round % 2 == 0) {
      ASSERT_TRUE(pair.second.waitForMessages(1));
    }
    std::thread remover([&] { pair.a->removePeer(1); });
    std::thread adder([&] {
      // Either is right, depending on who comes first.
      const ErrorCode code = pair.a->addPeer({2, "worker2", pair.b->address()}).code();
      EXPECT_TRUE(code == ErrorCode::kOk || code == ErrorCode::kShutdown);
    });
    pair.a->close(milliseconds(500));
    remover.join();
    adder.join();
  }
}

TEST(Flow, ARemovedPeerHearsGoodbyeAndMayComeBack) {
  Pair pair;
  expectOk(pair.a->send(1, textMessage("one")));
  ASSERT_TRUE(pair.second.waitForMessages(1));
  pair.a->removePeer(1);
  pair.a->removePeer(1);
  EXPECT_EQ(pair.a->send(1, textMessage("none")).code(), ErrorCode::kUnknownPeer);
  ASSERT_TRUE(pair.second.waitForLosses(1));
  EXPECT_EQ(pair.second.losses()[0].reason.code(), ErrorCode::kPeerClosed);
  EXPECT_TRUE(pair.first.losses().empty());
}

}  // namespace
}  // namespace weft::transport
