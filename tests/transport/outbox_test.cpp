// The Outbox with a stream made up for the purpose: exactly as much is taken as a test says.
#include "transport/channel/outbox.h"

#include <atomic>
#include <cerrno>
#include <deque>
#include <thread>

#include "tests/transport/late_bytes.h"
#include "tests/transport/recorder.h"
#include "transport/base/bytes.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

class ScriptedStream : public Stream {
 public:
  std::deque<IoResult> script;  // then everything is taken
  std::string written;
  int calls = 0;
  std::function<void()> during_write;

  IoResult write(std::span<iovec> from, std::span<const int>) override {
    ++calls;
    if (during_write) during_write();
    std::size_t allowed = ~std::size_t{0};
    if (!script.empty()) {
      const IoResult next = script.front();
      script.pop_front();
      if (next.error != 0) return next;
      allowed = next.count;
    }
    IoResult result;
    for (const iovec& part : from) {
      const std::size_t some = std::min(allowed, part.iov_len);
      written.append(static_cast<const char*>(part.iov_base), some);
      result.count += some;
      allowed -= some;
    }
    return result;
  }
  IoResult read(std::span<iovec>) override { return {0, EAGAIN, false}; }
  void finishWriting() override {}
  void breakOff() override {}
  int pollFd() const override { return -1; }
  const char* transportName() const override { return "scripted"; }
};

OutFrame frame(const std::string& text) {
  return std::move(OutFrame::message(textMessage(text), {})).value();
}

class OutboxTest : public ::testing::Test {
 protected:
  std::size_t frames() const {
    std::size_t count = 0;
    for (std::size_t at = 0; at + FrameHead::kBytes <= stream->written.size(); ++count) {
      const auto* head = reinterpret_cast<const std::byte*>(stream->written.data() + at);
      // Frames are whole and in their order, however they were written.
      EXPECT_EQ(loadLittle<std::uint32_t>(head), FrameHead::kMagic);
      if (head[5] == static_cast<std::byte>(FrameKind::kData)) {
        EXPECT_EQ(loadLittle<std::uint64_t>(head + 8), count + 1);
      }
      at += FrameHead::kBytes + loadLittle<std::uint32_t>(head + 24);
    }
    return count;
  }

  Limits limits;
  std::atomic<int> wakeups{0};
  std::shared_ptr<ScriptedStream> stream = std::make_shared<ScriptedStream>();
  Session session;
  Outbox outbox{limits, session, "worker 'x' (rank 1)", [this] { ++wakeups; }};
  int broken = 0;
};

TEST_F(OutboxTest, AsksForAConnectionOnceAndSendsWhatWaited) {
  expectOk(outbox.send(frame("one"), {}));
  expectOk(outbox.send(frame("two"), {}));
  EXPECT_EQ(wakeups, 1);
  EXPECT_TRUE(outbox.connectionWanted());
  outbox.attach(stream);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(stream->calls, 1);  // both in one system call
  EXPECT_EQ(frames(), 2U);
  EXPECT_EQ(outbox.stats().queued_bytes, 0U);
}

TEST_F(OutboxTest, WritesAtOnceWhenNothingIsQueued) {
  outbox.attach(stream);
  expectOk(outbox.send(frame("now"), {}));
  EXPECT_EQ(frames(), 1U);
  EXPECT_EQ(wakeups, 0);
  EXPECT_EQ(outbox.stats().messages_sent, 1U);
}

TEST_F(OutboxTest, HandsOverWhatDoesNotFitAndKeepsTheOrder) {
  outbox.attach(stream);
  stream->script = {{30, 0, false}, {0, EAGAIN, false}};
  expectOk(outbox.send(frame("first"), {}));
  EXPECT_EQ(wakeups, 1);
  expectOk(outbox.send(frame("second"), {}));  // queues behind it
  EXPECT_EQ(wakeups, 1);
  stream->script = {{5, 0, false}, {11, 0, false}, {0, EAGAIN, false}};
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kBlocked);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(frames(), 2U);
  EXPECT_NE(stream->written.find("first"), std::string::npos);
}

TEST_F(OutboxTest, OthersQueueWhileOneWritesAndNothingIsForgotten) {
  outbox.attach(stream);
  bool nested = false;
  stream->during_write = [&] {
    if (std::exchange(nested, true)) return;
    // As another thread would, in the middle of this one's system call.
    expectOk(outbox.send(frame("second"), {}));
    EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kBusy);
  };
  expectOk(outbox.send(frame("first"), {}));
  EXPECT_EQ(wakeups, 1);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(frames(), 2U);
}

TEST_F(OutboxTest, WhatACallerCouldNotWriteStaysAheadOfWhatQueuedMeanwhile) {
  outbox.attach(stream);
  stream->script = {{30, 0, false}, {0, EAGAIN, false}};
  bool nested = false;
  stream->during_write = [&] {
    if (!std::exchange(nested, true)) expectOk(outbox.send(frame("second"), {}));
  };
  expectOk(outbox.send(frame("first"), {}));
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(frames(), 2U);
}

TEST_F(OutboxTest, ABrokenStreamIsReportedByTheLoopNotTheCaller) {
  outbox.attach(stream);
  stream->script = {{0, EPIPE, false}, {0, EPIPE, false}};
  expectOk(outbox.send(frame("lost"), {}));
  EXPECT_EQ(wakeups, 1);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kBroken);
  EXPECT_EQ(broken, EPIPE);
  outbox.shut({ErrorCode::kPeerLost, "gone"});
  const FrameQueue::Frames unsent = outbox.takeUnsent().value();
  ASSERT_EQ(unsent.size(), 1U);
  EXPECT_EQ(textOf(unsent.front().header()), "lost");
  EXPECT_EQ(outbox.send(frame("late"), {}).text(), "gone");
}

TEST_F(OutboxTest, ShutWaitsForTheCallerThatWrites) {
  outbox.attach(stream);
  stream->script = {{10, 0, false}, {0, EAGAIN, false}};
  stream->during_write = [&] {
    outbox.shut({ErrorCode::kPeerLost, "gone"});
    EXPECT_FALSE(outbox.takeUnsent().has_value());
  };
  expectOk(outbox.send(frame("half"), {}));
  EXPECT_EQ(wakeups, 1);  // now it can complete
  EXPECT_EQ(outbox.takeUnsent().value().size(), 1U);
}

TEST_F(OutboxTest, NothingFollowsAGoodbye) {
  outbox.attach(stream);
  EXPECT_TRUE(outbox.control(FrameKind::kGoodbye));
  EXPECT_FALSE(outbox.control(FrameKind::kHeartbeat));
  EXPECT_EQ(outbox.send(frame("late"), {}).code(), ErrorCode::kShutdown);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(frames(), 1U);
}

TEST_F(OutboxTest, OwnersAreKeptUntilAcknowledgedAndNoLonger) {
  auto owner = std::make_shared<std::string>("bytes");
  const std::weak_ptr<std::string> watch = owner;
  Message message;
  message.buffers.push_back(
      {reinterpret_cast<std::byte*>(owner->data()), owner->size(), std::move(owner)});
  expectOk(outbox.send(std::move(OutFrame::message(std::move(message), limits)).value(), {}));
  EXPECT_FALSE(watch.expired());
  outbox.attach(stream);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_FALSE(watch.expired());
  EXPECT_TRUE(outbox.acked(1));
  outbox.tidy();
  EXPECT_TRUE(watch.expired());
}

// An owner may do anything when it is let go, also send: no lock is held then.
// A message with one buffer: who holds it, and who only waits for it to be written.
struct Holders {
  std::shared_ptr<int> owner = std::make_shared<int>(), writer = std::make_shared<int>();
  std::weak_ptr<int> kept = owner, unwritten = writer;
  std::byte bytes[8] = {};

  OutFrame frame(bool wanted_back) {
    Message message = textMessage("held");
    message.buffers.push_back({bytes, sizeof bytes, std::move(owner)});
    message.until_written = std::move(writer);
    message.wanted_back = wanted_back;
    return std::move(OutFrame::message(std::move(message), {})).value();
  }
};

bool asksForAnAck(const ScriptedStream& stream) {
  return loadLittle<std::uint16_t>(reinterpret_cast<const std::byte*>(stream.written.data()) + 6) ==
         FrameHead::kAckNow;
}

TEST_F(OutboxTest, WhatOnlyWaitsForTheWritingGoesThen) {
  for (const bool by_caller : {true, false}) {
    Session own;
    Outbox box{limits, own, "worker 'x' (rank 1)", [] {}};
    Holders held;
    if (by_caller) box.attach(stream);
    expectOk(box.send(held.frame(false), {}));
    EXPECT_EQ(held.unwritten.expired(), by_caller);
    if (!by_caller) {
      box.attach(stream);
      EXPECT_EQ(box.flush(broken), Outbox::Flushed::kDrained);
    }
    EXPECT_TRUE(held.unwritten.expired());
    EXPECT_FALSE(held.kept.expired());
  }
}

TEST_F(OutboxTest, ASenderThatWaitsForItsBuffersAsksAndHasThemWithTheAck) {
  outbox.attach(stream);
  Holders held;
  expectOk(outbox.send(held.frame(true), {}));
  EXPECT_TRUE(asksForAnAck(*stream));
  EXPECT_FALSE(held.kept.expired());
  EXPECT_TRUE(outbox.acked(1));
  EXPECT_TRUE(held.kept.expired());  // not at the next message, nor on the tick
}

TEST_F(OutboxTest, AnAckThatComesBeforeItsWriterIsBackCounts) {
  outbox.attach(stream);
  Holders held;
  bool asked = false;
  stream->during_write = [&] {
    if (std::exchange(asked, true)) return;
    EXPECT_TRUE(outbox.acked(1));  // the peer was quicker than this thread
  };
  expectOk(outbox.send(held.frame(true), {}));
  EXPECT_TRUE(held.kept.expired());
  EXPECT_TRUE(held.unwritten.expired());
  EXPECT_EQ(outbox.stats().unacked_bytes, 0U);
}

TEST_F(OutboxTest, WhatIsWantedBackGoesAgainWhenItsStreamBreaks) {
  outbox.attach(stream);
  Holders held;
  expectOk(outbox.send(held.frame(true), {}));
  EXPECT_TRUE(held.unwritten.expired());
  outbox.detach();
  EXPECT_FALSE(held.kept.expired());
  const auto next = std::make_shared<ScriptedStream>();
  outbox.attach(next, 0);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_FALSE(next->written.empty());
  EXPECT_TRUE(asksForAnAck(*next));
  EXPECT_TRUE(outbox.acked(1));
  EXPECT_TRUE(held.kept.expired());
}

TEST_F(OutboxTest, WhatIsWantedBackAndHadArrivedIsLetGoByTheNextStream) {
  outbox.attach(stream);
  Holders held;
  expectOk(outbox.send(held.frame(true), {}));
  outbox.detach();
  outbox.attach(std::make_shared<ScriptedStream>(), 1);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_TRUE(held.kept.expired());
}

TEST_F(OutboxTest, AnOwnerMaySendWhenItIsLetGo) {
  Message message;
  message.buffers.push_back({nullptr, 0, std::shared_ptr<void>(nullptr, [&](void*) {
                               expectOk(outbox.send(frame("from the owner"), {}));
                             })});
  expectOk(outbox.send(std::move(OutFrame::message(std::move(message), limits)).value(), {}));
  outbox.attach(stream);
  outbox.flush(broken);
  EXPECT_TRUE(outbox.acked(1));
  outbox.tidy();
  EXPECT_NE(stream->written.find("from the owner"), std::string::npos);
}

// --- from one stream to the next ---

TEST_F(OutboxTest, WhatWasNotAcknowledgedGoesAgainInOrder) {
  outbox.attach(stream);
  for (const char* text : {"one", "two", "three"})
    expectOk(outbox.send(frame(text), {}));
  EXPECT_TRUE(outbox.acked(1));
  outbox.detach();
  expectOk(outbox.send(frame("four"), {}));
  const auto second = std::make_shared<ScriptedStream>();
  outbox.attach(second, 2);  // the ack of the second was lost
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(second->written.find("two"), std::string::npos);
  EXPECT_LT(second->written.find("three"), second->written.find("four"));
  EXPECT_EQ(outbox.stats().messages_sent, 4U);
  EXPECT_TRUE(outbox.acked(4));
  EXPECT_EQ(outbox.stats().unacked_bytes, 0U);
}

TEST_F(OutboxTest, AHalfWrittenMessageGoesAgainFromItsBeginning) {
  outbox.attach(stream);
  stream->script = {{30, 0, false}, {0, EAGAIN, false}};
  expectOk(outbox.send(frame("half"), {}));
  EXPECT_TRUE(outbox.control(FrameKind::kHeartbeat));  // void on another stream
  outbox.detach();
  stream = std::make_shared<ScriptedStream>();
  outbox.attach(stream);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(frames(), 1U);
  EXPECT_EQ(outbox.stats().queued_bytes, 0U);
}

TEST_F(OutboxTest, ACallerThatWritesWhileTheStreamIsReplacedLosesNothing) {
  for (const bool whole : {true, false}) {
    Session own;
    Outbox box{limits, own, "worker 'x' (rank 1)", [this] { ++wakeups; }};
    const auto first = std::make_shared<ScriptedStream>();
    const auto second = std::make_shared<ScriptedStream>();
    box.attach(first);
    expectOk(box.send(frame("one"), {}));
    if (!whole) first->script = {{30, 0, false}, {0, EPIPE, false}};
    bool nested = false;
    first->during_write = [&] {
      if (std::exchange(nested, true)) return;
      expectOk(box.send(frame("three"), {}));
      box.detach();
      box.attach(second, 1);
      EXPECT_TRUE(box.control(FrameKind::kHeartbeat));
      EXPECT_EQ(box.flush(broken), Outbox::Flushed::kBusy);
      expectOk(box.send(frame("four"), {}));
    };
    wakeups = 0;
    expectOk(box.send(frame("two"), {}));
    EXPECT_GE(wakeups, 1);
    EXPECT_EQ(box.flush(broken), Outbox::Flushed::kDrained);
    const std::size_t two = second->written.find("two");
    const std::size_t three = second->written.find("three");
    const std::size_t four = second->written.find("four");
    EXPECT_TRUE(two < three && three < four && four != std::string::npos) << second->written;
  }
}

TEST_F(OutboxTest, AStreamThatBrokeIsLetGo) {
  const std::weak_ptr<Stream> gone = stream;
  outbox.attach(std::move(stream));
  outbox.detach();
  EXPECT_TRUE(gone.expired());
  EXPECT_STREQ(outbox.stats().transport, "");
}

TEST_F(OutboxTest, WhatIsNotAcknowledgedTakesRoom) {
  limits.max_queued_bytes = 200;
  outbox.attach(stream);
  const std::string text(60, 'x');  // 100 bytes on the wire
  expectOk(outbox.send(frame(text), milliseconds(0)));
  expectOk(outbox.send(frame(text), milliseconds(0)));
  EXPECT_EQ(outbox.send(frame(text), milliseconds(0)).code(), ErrorCode::kTimeout);
  EXPECT_TRUE(outbox.acked(1));
  expectOk(outbox.send(frame(text), milliseconds(0)));
  EXPECT_EQ(outbox.send(frame(text), milliseconds(0)).code(), ErrorCode::kTimeout);
  EXPECT_EQ(frames(), 3U);
}

TEST_F(OutboxTest, AnAckOfWhatWasNeverSentIsALie) {
  outbox.attach(stream);
  expectOk(outbox.send(frame("one"), {}));
  EXPECT_FALSE(outbox.acked(2));
}

TEST_F(OutboxTest, WhenTheStreamBrokeWhatWasNotAcknowledgedCountsAsUnsent) {
  outbox.attach(stream);
  expectOk(outbox.send(frame("one"), {}));
  expectOk(outbox.send(frame("two"), {}));
  EXPECT_TRUE(outbox.acked(1));
  outbox.detach();
  outbox.shut({ErrorCode::kPeerLost, "gone"});
  const FrameQueue::Frames unsent = outbox.takeUnsent().value();
  ASSERT_EQ(unsent.size(), 1U);
  EXPECT_EQ(textOf(unsent.front().header()), "two");
}

// A message of 1000 bytes that come 100 at a time.
std::shared_ptr<LateBytes> lateBytes() {
  OwnedBuffer content = newBuffer(1000);
  std::fill_n(content.data, content.size, std::byte{'x'});
  return std::make_shared<LateBytes>(std::vector<OwnedBuffer>{content}, 100);
}

OutFrame late(const std::shared_ptr<LateBytes>& bytes) {
  Message message;
  message.buffers = bytes->buffers();
  message.filling = bytes;
  return std::move(OutFrame::message(std::move(message), {})).value();
}

constexpr std::size_t kLateFront = FrameHead::kBytes + 8;

TEST_F(OutboxTest, BytesAreWrittenAsTheyCome) {
  outbox.attach(stream);
  const auto bytes = lateBytes();
  std::vector<std::size_t> written;
  bytes->before_wait = [&] { written.push_back(stream->written.size()); };
  expectOk(outbox.send(late(bytes), {}));
  ASSERT_EQ(written.size(), 10U);
  for (std::size_t i = 0; i < written.size(); ++i)
    EXPECT_EQ(written[i], kLateFront + i * 100);
  EXPECT_EQ(stream->written.substr(kLateFront), std::string(1000, 'x'));
  EXPECT_EQ(wakeups, 0);
}

TEST_F(OutboxTest, AFullStreamIsTriedAgainWithEachStepAndGetsTheRestFromTheLoop) {
  outbox.attach(stream);
  stream->script = {{kLateFront, 0, false}, {0, EAGAIN, false}, {30, 0, false}};
  for (int i = 0; i < 20; ++i)
    stream->script.push_back({0, EAGAIN, false});
  const auto bytes = lateBytes();
  expectOk(outbox.send(late(bytes), {}));
  EXPECT_EQ(bytes->filled(), Filling::kAll);
  EXPECT_EQ(stream->written.size(), kLateFront + 30);
  EXPECT_EQ(wakeups, 1);
  stream->script.clear();
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(stream->written.substr(kLateFront), std::string(1000, 'x'));
}

TEST_F(OutboxTest, WhatOthersWillWriteIsThereBeforeItIsQueued) {
  const auto bytes = lateBytes();
  expectOk(outbox.send(late(bytes), {}));  // not connected
  EXPECT_EQ(bytes->filled(), Filling::kAll);
  outbox.attach(stream);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(stream->written.substr(kLateFront), std::string(1000, 'x'));
}

// Others may take the room while the bytes of this one come.
TEST_F(OutboxTest, WhoWaitsForRoomTwiceWaitsNoLonger) {
  constexpr milliseconds kWait(1000);
  limits.max_queued_bytes = 3000;
  outbox.attach(stream);
  const OutFrame sized = frame(std::string(2000, 'x'));
  stream->script = {{0, EAGAIN, false}, {sized.size(), 0, false}, {0, EAGAIN, false}};
  expectOk(outbox.send(frame(std::string(2000, 'x')), {}));
  expectOk(outbox.send(frame(std::string(100, 'x')), {}));
  const auto bytes = lateBytes();
  bytes->before_wait = [&] {
    if (bytes->waits == 1) expectOk(outbox.send(frame(std::string(2500, 'x')), {}));
  };
  std::thread other([&] {
    std::this_thread::sleep_for(kWait * 7 / 10);
    EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kBlocked);
    EXPECT_TRUE(outbox.acked(1));
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(outbox.send(late(bytes), kWait).code(), ErrorCode::kTimeout);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kWait * 3 / 2);
  EXPECT_EQ(bytes->filled(), Filling::kAll);
  other.join();
}

TEST_F(OutboxTest, AStreamThatBreaksWhileBytesComeGetsThemAllAgain) {
  outbox.attach(stream);
  const auto bytes = lateBytes();
  bytes->before_wait = [&] {
    if (bytes->waits == 4) outbox.detach();
  };
  expectOk(outbox.send(late(bytes), {}));
  EXPECT_EQ(bytes->filled(), Filling::kAll);
  const auto next = std::make_shared<ScriptedStream>();
  outbox.attach(next);
  EXPECT_EQ(outbox.flush(broken), Outbox::Flushed::kDrained);
  EXPECT_EQ(next->written.substr(kLateFront), std::string(1000, 'x'));
}

}  // namespace
}  // namespace weft::transport
