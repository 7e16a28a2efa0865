#include "transport/frame/frame.h"

#include <algorithm>
#include <random>

#include "tests/transport/recorder.h"
#include "transport/base/bytes.h"
#include "transport/frame/frame_reader.h"
#include "transport/frame/out_frame.h"

namespace weft::transport {
namespace {

class Sink : public MessageHandler {
 public:
  FrameHandlers handlers() { return {*this}; }

  Disposition disposition = Disposition::kAccept;
  std::vector<std::vector<std::uint64_t>> announced;
  std::vector<Recorder::Received> messages;

  Result<Disposition> onHeader(std::span<const std::byte>, std::span<const std::uint64_t> sizes,
                               std::vector<OwnedBuffer>& buffers) override {
    announced.emplace_back(sizes.begin(), sizes.end());
    if (disposition == Disposition::kAccept) fillBuffers(sizes, buffers);
    return disposition;
  }
  Error onMessage(std::span<const std::byte> header, std::vector<OwnedBuffer> buffers) override {
    messages.push_back({0, textOf(header), std::move(buffers)});
    return Error::ok();
  }
};

// Feeds `bytes` in pieces of at most `piece`, through whatever targets the reader names.
Error feed(FrameReader& reader, std::span<const std::byte> bytes, std::size_t piece) {
  while (!bytes.empty()) {
    std::array<iovec, 5> entries;
    const std::size_t used = reader.prepare(entries);
    std::size_t left = std::min(piece, bytes.size());
    std::size_t fed = 0;
    for (std::size_t i = 0; i < used && left > 0; ++i) {
      EXPECT_GT(entries[i].iov_len, 0U);
      const std::size_t some = std::min(left, entries[i].iov_len);
      std::memcpy(entries[i].iov_base, bytes.data() + fed, some);
      fed += some;
      left -= some;
    }
    bytes = bytes.subspan(fed);
    if (Error error = reader.commit(fed)) return error;
  }
  return Error::ok();
}

// What is left of it.
std::vector<std::byte> drained(OutFrame frame) {
  std::vector<std::byte> bytes;
  while (frame.left() > 0) {
    std::array<iovec, 2> entries;
    const std::size_t used = frame.gather(entries);
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < used; ++i) {
      const auto* base = static_cast<const std::byte*>(entries[i].iov_base);
      bytes.insert(bytes.end(), base, base + entries[i].iov_len);
      count += entries[i].iov_len;
    }
    // An odd number of bytes at a time, so that writes end inside parts.
    const std::uint64_t taken = count > 3 ? count - 3 : count;
    bytes.resize(bytes.size() - (count - taken));
    frame.advance(taken);
  }
  return bytes;
}

std::vector<std::byte> wire(OutFrame frame, std::uint64_t sequence, std::uint16_t flags = 0) {
  frame.seal(sequence, 0, flags);
  return drained(std::move(frame));
}

Message sample(std::size_t header, const std::vector<std::size_t>& sizes, unsigned seed) {
  Message message;
  std::mt19937 random(seed);
  message.header.resize(header);
  for (std::byte& byte : message.header)
    byte = static_cast<std::byte>(random());
  for (const std::size_t size : sizes) {
    message.buffers.push_back(newBuffer(size));
    for (std::size_t i = 0; i < size; ++i)
      message.buffers.back().data[i] = static_cast<std::byte>(random());
  }
  return message;
}

void expectSame(const Recorder::Received& got, const Message& sent) {
  EXPECT_EQ(got.header, textOf(sent.header));
  ASSERT_EQ(got.buffers.size(), sent.buffers.size());
  for (std::size_t i = 0; i < sent.buffers.size(); ++i) {
    ASSERT_EQ(got.buffers[i].size, sent.buffers[i].size);
    EXPECT_TRUE(std::equal(sent.buffers[i].data, sent.buffers[i].data + sent.buffers[i].size,
                           got.buffers[i].data));
  }
}

TEST(Frame, MessagesOfAllShapesSurviveAnyCutting) {
  const Limits limits;
  const std::vector<Message> messages = {sample(0, {}, 1),
                                         sample(1, {}, 2),
                                         sample(0, {0}, 3),
                                         sample(100, {0, 5, 0, 0, 70'000, 1, 0}, 4),
                                         sample(70'000, {3}, 5),
                                         sample(65'536, {65'536}, 6),
                                         sample(9, std::vector<std::size_t>(300, 11), 7),
                                         sample(200'000, {}, 8),
                                         sample(5, {200'000, 0, 200'000}, 9)};
  std::vector<std::byte> bytes;
  std::uint64_t sequence = 0;
  for (const Message& message : messages) {
    const std::vector<std::byte> one =
        wire(std::move(OutFrame::message(message, limits)).value(), ++sequence);
    bytes.insert(bytes.end(), one.begin(), one.end());
    const std::vector<std::byte> beat = wire(OutFrame::control(FrameKind::kHeartbeat), sequence);
    bytes.insert(bytes.end(), beat.begin(), beat.end());
  }
  for (const std::size_t piece :
       {1UL, 2UL, 7UL, 39UL, 41UL, 1000UL, 65'536UL, 65'537UL, bytes.size()}) {
    SCOPED_TRACE(piece);
    Sink sink;
    FrameReader reader(limits, sink.handlers());
    expectOk(feed(reader, bytes, piece));
    ASSERT_EQ(sink.messages.size(), messages.size());
    for (std::size_t i = 0; i < messages.size(); ++i)
      expectSame(sink.messages[i], messages[i]);
  }
}

// Copies what it is told of: the bytes are there by then.
class Copying : public Sink, public Arrivals {
 public:
  Result<Disposition> onHeader(std::span<const std::byte> header,
                               std::span<const std::uint64_t> sizes,
                               std::vector<OwnedBuffer>& buffers) override {
    copied.clear();
    return Sink::onHeader(header, sizes, buffers);
  }
  std::shared_ptr<Arrivals> arrivals() override { return {std::shared_ptr<void>(), this}; }
  void onBytes(const std::byte* begin, std::size_t size) noexcept override {
    copied.insert(copied.end(), begin, begin + size);
  }
  std::vector<std::byte> copied;
};

TEST(Frame, WhoListensIsToldOfTheBytesAsTheyCome) {
  const Limits limits;
  const Message message = sample(10, {0, 9000, 0, 1, 200'000, 0}, 3);
  const std::vector<std::byte> bytes =
      wire(std::move(OutFrame::message(message, limits)).value(), 1);
  std::vector<std::byte> expected;
  for (const OwnedBuffer& buffer : message.buffers)
    expected.insert(expected.end(), buffer.data, buffer.data + buffer.size);
  for (const std::size_t piece : {1UL, 1000UL, 65'537UL, bytes.size()}) {
    Copying sink;
    FrameReader reader(limits, sink.handlers());
    const std::size_t most = bytes.size() - 50'000;
    expectOk(feed(reader, std::span(bytes).first(most), piece));
    EXPECT_EQ(sink.copied.size(), expected.size() - 50'000);
    expectOk(feed(reader, std::span(bytes).subspan(most), piece));
    EXPECT_EQ(sink.copied, expected);
    EXPECT_EQ(sink.messages.size(), 1U);
  }
}

// A bulk connection whose half comes when the test says so.
class BulkSink : public Sink, public BulkHandler {
 public:
  FrameHandlers handlers() { return {*this, nullptr, this}; }

  std::vector<iovec> into;
  bool there = false;

  Error readFromBulk(std::span<const iovec> half, std::shared_ptr<Arrivals> /*arrivals*/) override {
    into.assign(half.begin(), half.end());
    there = false;
    return Error::ok();
  }
  bool bulkArrived() override { return there; }

  void fill(const std::vector<OwnedBuffer>& half) {
    std::vector<std::byte> bytes;
    for (const OwnedBuffer& buffer : half)
      bytes.insert(bytes.end(), buffer.data, buffer.data + buffer.size);
    std::size_t at = 0;
    for (const iovec& entry : into) {
      ASSERT_LE(at + entry.iov_len, bytes.size());
      if (entry.iov_base != nullptr) std::memcpy(entry.iov_base, bytes.data() + at, entry.iov_len);
      at += entry.iov_len;
    }
    EXPECT_EQ(at, bytes.size());
    there = true;
  }
};

std::vector<std::byte> wireSplit(OutFrame frame, std::uint64_t sequence,
                                 std::vector<OwnedBuffer>& half) {
  half = frame.split();
  EXPECT_EQ(frame.bulkBytes(), bulkShare(frame.carried()));
  return wire(std::move(frame), sequence, FrameHead::kSplit);
}

TEST(Frame, TheHalfThatComesOverTheBulkConnectionMayComeBeforeOrAfterTheOther) {
  const Limits limits;
  for (const std::vector<std::size_t>& sizes :
       {std::vector<std::size_t>{20'000}, {0, 9000, 0, 1, 30'000, 0}, {100, 100'000, 100}}) {
    const Message message = sample(10, sizes, 3);
    std::vector<OwnedBuffer> half;
    std::vector<std::byte> bytes =
        wireSplit(std::move(OutFrame::message(message, limits)).value(), 1, half);
    const Message after = sample(3, {5}, 4);
    const std::vector<std::byte> next =
        wire(std::move(OutFrame::message(after, limits)).value(), 2);
    const std::size_t first = bytes.size();
    bytes.insert(bytes.end(), next.begin(), next.end());
    for (const std::size_t piece : {1UL, 1000UL, first, bytes.size()}) {
      for (const bool early : {true, false}) {
        for (const Disposition disposition : {Disposition::kAccept, Disposition::kDiscard}) {
          BulkSink sink;
          sink.disposition = disposition;
          FrameReader reader(limits, sink.handlers());
          // Up to where the bulk connection's half is known of, then to where nothing else is
          // missing.
          expectOk(feed(reader, std::span(bytes).first(200), piece));
          ASSERT_FALSE(sink.into.empty());
          if (early) sink.fill(half);
          expectOk(feed(reader, std::span(bytes).subspan(200, first - 200), piece));
          if (!early) {
            ASSERT_TRUE(reader.waiting());
            expectOk(reader.resume());
            ASSERT_TRUE(reader.waiting());
            sink.fill(half);
            expectOk(reader.resume());
          }
          ASSERT_FALSE(reader.waiting());
          expectOk(feed(reader, std::span(bytes).subspan(first), piece));
          if (disposition == Disposition::kDiscard) {
            EXPECT_TRUE(sink.messages.empty());
            EXPECT_EQ(sink.announced.size(), 2U);
            continue;
          }
          ASSERT_EQ(sink.messages.size(), 2U);
          expectSame(sink.messages[0], message);
          expectSame(sink.messages[1], after);
        }
      }
    }
  }
}

TEST(Frame, WhatFollowsASplitFrameWaitsForIt) {
  const Limits limits;
  const Message message = sample(10, {20'000}, 3);
  std::vector<OwnedBuffer> half;
  std::vector<std::byte> bytes =
      wireSplit(std::move(OutFrame::message(message, limits)).value(), 1, half);
  const std::vector<std::byte> goodbye = wire(OutFrame::control(FrameKind::kGoodbye), 1);
  bytes.insert(bytes.end(), goodbye.begin(), goodbye.end());
  BulkSink sink;
  FrameReader reader(limits, sink.handlers());
  expectOk(feed(reader, bytes, bytes.size()));
  ASSERT_TRUE(reader.waiting());
  EXPECT_FALSE(reader.ended());
  sink.fill(half);
  expectOk(reader.resume());
  EXPECT_TRUE(reader.ended());
  EXPECT_EQ(sink.messages.size(), 1U);
}

TEST(Frame, ASplitFrameGoesWholeOverAnotherStream) {
  const Limits limits;
  const Message message = sample(10, {20'000, 7}, 3);
  OutFrame frame = std::move(OutFrame::message(message, limits)).value();
  const std::uint64_t size = frame.size();
  static_cast<void>(frame.split());
  frame.seal(1, 0, FrameHead::kSplit);
  EXPECT_EQ(frame.left(), size - bulkShare(20'007));
  frame.advance(1000);
  frame.rewind();
  EXPECT_EQ(frame.left(), size);
  Sink sink;
  FrameReader reader(limits, sink.handlers());
  expectOk(feed(reader, drained(std::move(frame)), 1000));
  ASSERT_EQ(sink.messages.size(), 1U);
  expectSame(sink.messages[0], message);
}

TEST(Frame, ASplitThatCannotBeEndsTheLink) {
  const Limits limits;
  const std::vector<std::byte> small = wire(
      std::move(OutFrame::message(sample(1, {5000}, 1), limits)).value(), 1, FrameHead::kSplit);
  BulkSink bulk;
  FrameReader reader(limits, bulk.handlers());
  EXPECT_EQ(feed(reader, small, 1000).code(), ErrorCode::kProtocol);
  std::vector<OwnedBuffer> half;
  const std::vector<std::byte> large =
      wireSplit(std::move(OutFrame::message(sample(1, {50'000}, 1), limits)).value(), 1, half);
  Sink none;
  FrameReader without(limits, none.handlers());
  EXPECT_EQ(feed(without, large, 1000).code(), ErrorCode::kProtocol);
}

TEST(Frame, EveryTruncationIsJustNotYetAMessage) {
  const Limits limits;
  const Message message = sample(20, {3, 0, 50}, 1);
  const std::vector<std::byte> bytes =
      wire(std::move(OutFrame::message(message, limits)).value(), 1);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    Sink sink;
    FrameReader reader(limits, sink.handlers());
    expectOk(feed(reader, std::span(bytes).first(length), 1));
    EXPECT_TRUE(sink.messages.empty()) << length;
    expectOk(feed(reader, std::span(bytes).subspan(length), 1000));
    EXPECT_EQ(sink.messages.size(), 1U) << length;
  }
}

TEST(Frame, DiscardReadsPastAndGoesOn) {
  const Limits limits;
  Sink sink;
  sink.disposition = Disposition::kDiscard;
  FrameReader reader(limits, sink.handlers());
  expectOk(feed(reader,
                wire(std::move(OutFrame::message(sample(4, {300'000}, 1), limits)).value(), 1),
                9999));
  EXPECT_TRUE(sink.messages.empty());
  sink.disposition = Disposition::kAccept;
  const Message next = sample(4, {10}, 2);
  expectOk(feed(reader, wire(std::move(OutFrame::message(next, limits)).value(), 2), 9999));
  ASSERT_EQ(sink.messages.size(), 1U);
  expectSame(sink.messages[0], next);
}

TEST(Frame, RefuseEndsTheLink) {
  const Limits limits;
  Sink sink;
  sink.disposition = Disposition::kRefuse;
  FrameReader reader(limits, sink.handlers());
  const Error error =
      feed(reader, wire(std::move(OutFrame::message(sample(4, {1}, 1), limits)).value(), 1), 9999);
  EXPECT_EQ(error.code(), ErrorCode::kProtocol);
}

TEST(Frame, NothingIsReadAfterGoodbye) {
  const Limits limits;
  Sink sink;
  FrameReader reader(limits, sink.handlers());
  std::vector<std::byte> bytes = wire(OutFrame::control(FrameKind::kGoodbye), 0);
  bytes.insert(bytes.end(), 1000, std::byte{0x5A});
  expectOk(feed(reader, bytes, 13));
  EXPECT_TRUE(reader.ended());
}

// A head with one field changed.
std::vector<std::byte> headWith(const std::function<void(std::byte*)>& change) {
  FrameHead head;
  head.sequence = 1;
  head.header_bytes = 8;
  head.buffer_count = 2;
  head.buffer_bytes = 100;
  std::vector<std::byte> bytes(FrameHead::kBytes);
  encodeFrameHead(head, bytes.data());
  change(bytes.data());
  return bytes;
}

Error firstError(const std::vector<std::byte>& bytes, const Limits& limits = {}) {
  Sink sink;
  FrameReader reader(limits, sink.handlers());
  Error error = feed(reader, bytes, 1000);
  EXPECT_TRUE(sink.announced.empty());
  return error;
}

TEST(Frame, WhatIsNotAFrameIsNamed) {
  expectOk(firstError(headWith([](std::byte*) {})));
  const auto code = [](const std::function<void(std::byte*)>& change) {
    return firstError(headWith(change)).code();
  };
  EXPECT_EQ(code([](std::byte* p) { p[0] ^= std::byte{1}; }), ErrorCode::kProtocol);  // magic
  EXPECT_EQ(code([](std::byte* p) { p[4] = std::byte{2}; }), ErrorCode::kProtocol);   // version
  EXPECT_EQ(code([](std::byte* p) { p[5] = std::byte{0}; }), ErrorCode::kProtocol);   // kind
  EXPECT_EQ(code([](std::byte* p) { p[5] = std::byte{4}; }), ErrorCode::kProtocol);
  EXPECT_EQ(code([](std::byte* p) { p[5] = std::byte{2}; }),
            ErrorCode::kProtocol);  // heartbeat with contents
  EXPECT_EQ(code([](std::byte* p) { p[6] = std::byte{4}; }), ErrorCode::kProtocol);  // flags
  expectOk(firstError(headWith([](std::byte* p) { p[6] = std::byte{1}; })));         // wants an ack
  EXPECT_EQ(code([](std::byte* p) {
              std::fill_n(p + 24, 16, std::byte{0});
              p[5] = std::byte{7};  // an ack cannot want one
              p[6] = std::byte{1};
            }),
            ErrorCode::kProtocol);
  EXPECT_EQ(code([](std::byte* p) { storeLittle<std::uint64_t>(p + 8, 2); }),
            ErrorCode::kProtocol);  // sequence
  EXPECT_EQ(code([](std::byte* p) { storeLittle<std::uint32_t>(p + 28, 0); }),
            ErrorCode::kProtocol);  // bytes, no buffers
}

TEST(Frame, LimitsHoldToTheByte) {
  Limits limits;
  limits.max_header_bytes = 8;
  limits.max_buffers = 2;
  limits.max_message_bytes = 108;
  expectOk(firstError(headWith([](std::byte*) {}), limits));
  const auto code = [&](std::size_t at, auto value) {
    return firstError(headWith([&](std::byte* p) { storeLittle(p + at, value); }), limits).code();
  };
  EXPECT_EQ(code(24, std::uint32_t{9}), ErrorCode::kLimitExceeded);
  EXPECT_EQ(code(28, std::uint32_t{3}), ErrorCode::kLimitExceeded);
  EXPECT_EQ(code(32, std::uint64_t{101}), ErrorCode::kLimitExceeded);
  EXPECT_EQ(code(32, ~std::uint64_t{0}), ErrorCode::kLimitExceeded);  // the sum would overflow
  EXPECT_EQ(code(32, ~std::uint64_t{0} - 7), ErrorCode::kLimitExceeded);
  EXPECT_EQ(code(24, ~std::uint32_t{0}), ErrorCode::kLimitExceeded);
  EXPECT_EQ(code(28, ~std::uint32_t{0}), ErrorCode::kLimitExceeded);
}

TEST(Frame, TheTableMustFitTheHead) {
  const auto withTable = [](std::uint64_t first, std::uint64_t second) {
    std::vector<std::byte> bytes = headWith([](std::byte*) {});
    bytes.resize(bytes.size() + 16);
    storeLittle<std::uint64_t>(bytes.data() + 40, first);
    storeLittle<std::uint64_t>(bytes.data() + 48, second);
    return bytes;
  };
  expectOk(firstError(withTable(30, 70)));
  EXPECT_EQ(firstError(withTable(30, 69)).code(), ErrorCode::kProtocol);
  EXPECT_EQ(firstError(withTable(30, 71)).code(), ErrorCode::kProtocol);
  EXPECT_EQ(firstError(withTable(~std::uint64_t{0}, 101)).code(), ErrorCode::kProtocol);
  EXPECT_EQ(firstError(withTable(30, 70 | (std::uint64_t{3} << 56))).code(),
            ErrorCode::kProtocol);  // a place unknown here
}

// A sink with an arena in which every block holds its slot's number.
class ArenaSink : public Sink, public SharedMemoryHandler {
 public:
  FrameHandlers handlers() { return {*this, this}; }

  std::vector<ArenaDescriptor> asked;
  std::vector<FrameKind> controls;

  Result<OwnedBuffer> arenaBuffer(const ArenaDescriptor& block, std::uint64_t size) override {
    asked.push_back(block);
    OwnedBuffer buffer = newBuffer(size);
    std::memset(buffer.data, static_cast<int>(block.slot), size);
    return buffer;
  }
  Result<OwnedBuffer> exportedBuffer(const ArenaDescriptor&, std::uint64_t) override {
    return protocolError("no exported memory here");
  }
  Error onArenaFrame(FrameKind kind, std::span<const std::byte>) override {
    controls.push_back(kind);
    return Error::ok();
  }
};

TEST(Frame, BuffersInTheArenaComeBesideOthers) {
  const Limits limits;
  // Few fit the front of a frame, many do not.
  for (const std::size_t count : {1U, 4U, 5U, 40U}) {
    Message message = sample(10, {}, 1);
    ArenaPlacement placement;
    for (std::size_t i = 0; i < 2 * count; ++i) {
      message.buffers.push_back(newBuffer(100 + i));
      std::memset(message.buffers.back().data, 1, 100 + i);
      if (i % 2 == 1) {
        placement.add(static_cast<std::uint32_t>(i),
                      {kArenaDataOffset + 4096 * i, static_cast<std::uint32_t>(i), 0});
      }
    }
    const std::vector<std::byte> header = message.header;
    OutFrame frame =
        std::move(OutFrame::message(std::move(message), limits, std::move(placement))).value();
    EXPECT_EQ(frame.size(),
              FrameHead::kBytes + 10 + 2 * count * 8 + count * 16 + count * (100 + count - 1));
    const std::vector<std::byte> bytes = wire(std::move(frame), 1);
    const std::vector<std::byte> goodbye = wire(OutFrame::control(FrameKind::kGoodbye), 1);
    for (const std::size_t piece : {1U, 7U, 100'000U}) {
      ArenaSink sink;
      FrameReader reader(limits, sink.handlers());
      expectOk(feed(reader, bytes, piece));
      ASSERT_EQ(sink.messages.size(), 1U);
      EXPECT_EQ(sink.messages[0].header, textOf(header));
      ASSERT_EQ(sink.messages[0].buffers.size(), 2 * count);
      ASSERT_EQ(sink.asked.size(), count);
      for (std::size_t i = 0; i < 2 * count; ++i) {
        const OwnedBuffer& buffer = sink.messages[0].buffers[i];
        ASSERT_EQ(buffer.size, 100 + i);
        const auto expected = static_cast<std::byte>(i % 2 == 1 ? i : 1);
        EXPECT_TRUE(std::all_of(buffer.data, buffer.data + buffer.size,
                                [&](std::byte byte) { return byte == expected; }));
      }
      EXPECT_EQ(sink.asked[count - 1].offset, kArenaDataOffset + 4096 * (2 * count - 1));
      expectOk(feed(reader, goodbye, piece));
      EXPECT_TRUE(reader.ended()) << "the next frame begins where the message ends";
    }
    Sink without;
    FrameReader reader(limits, without.handlers());
    EXPECT_EQ(feed(reader, bytes, 1000).text(), "a buffer in shared memory that was not offered");
  }
}

TEST(Frame, FramesAboutTheArenaHaveTheirPlaceBetweenOthers) {
  const auto arena = std::move(SharedArena::create(1 << 20, 4)).value();
  std::vector<std::byte> bytes;
  const auto add = [&](OutFrame frame) {
    const std::vector<std::byte> more = wire(std::move(frame), 0);
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  add(OutFrame::control(FrameKind::kArenaAccept));
  add(OutFrame::arenaOffer(arena));
  add(OutFrame::control(FrameKind::kArenaRefuse));
  const Limits limits;
  for (const std::size_t piece : {1U, 1000U}) {
    ArenaSink sink;
    FrameReader reader(limits, sink.handlers());
    expectOk(feed(reader, bytes, piece));
    EXPECT_EQ(sink.controls,
              (std::vector<FrameKind>{FrameKind::kArenaAccept, FrameKind::kArenaOffer,
                                      FrameKind::kArenaRefuse}));
    expectOk(feed(reader, wire(OutFrame::control(FrameKind::kGoodbye), 0), piece));
    EXPECT_TRUE(reader.ended());
  }
  EXPECT_EQ(firstError(wire(OutFrame::control(FrameKind::kArenaAccept), 0)).text(),
            "a frame about shared memory, which is not used here");
}

TEST(Frame, TheSenderHoldsTheSameLimits) {
  Limits limits;
  limits.max_header_bytes = 10;
  limits.max_buffers = 2;
  limits.max_message_bytes = 100;
  const auto code = [&](const Message& message) {
    const Result<OutFrame> frame = OutFrame::message(message, limits);
    return frame.ok() ? ErrorCode::kOk : frame.error().code();
  };
  EXPECT_EQ(code(sample(10, {45, 45}, 1)), ErrorCode::kOk);
  EXPECT_EQ(code(sample(11, {}, 1)), ErrorCode::kLimitExceeded);
  EXPECT_EQ(code(sample(0, {1, 1, 1}, 1)), ErrorCode::kLimitExceeded);
  EXPECT_EQ(code(sample(10, {45, 46}, 1)), ErrorCode::kLimitExceeded);
  Message wild = sample(10, {}, 1);
  wild.buffers.push_back({reinterpret_cast<std::byte*>(1), ~std::size_t{0}, nullptr});
  EXPECT_EQ(code(wild), ErrorCode::kLimitExceeded);
  wild.buffers[0] = {nullptr, 1, nullptr};
  EXPECT_EQ(code(wild), ErrorCode::kInvalidArgument);
}

TEST(Frame, RandomDamageNeverGoesUnnoticedAsACrash) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Limits limits;
  limits.max_message_bytes = 1 << 20;
  limits.max_header_bytes = 1 << 16;
  const std::vector<std::byte> good =
      wire(std::move(OutFrame::message(sample(30, {10, 20}, 1), limits)).value(), 1);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = good;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    Sink sink;
    FrameReader reader(limits, sink.handlers());
    static_cast<void>(feed(reader, bytes, 1 + random() % 60));
    ASSERT_LE(sink.messages.size(), 1U);
  }
}

}  // namespace
}  // namespace weft::transport
