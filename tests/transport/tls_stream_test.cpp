// TLS over bytes in memory: whatever pieces they are written, carried and read in, they arrive as
// they were; whatever is done to them on the way is an error.
#include "transport/tls/tls_stream.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/altered_pipe.h"
#include "tests/transport/certificates.h"
#include "tests/transport/raw_tls.h"
#include "tests/transport/stream_pieces.h"
#include "transport/tls/tls_context.h"

namespace weft::transport {
namespace {

using Role = TlsConnection::Role;
using Step = TlsConnection::Step;

using Pipe = AlteredPipe;

// One end: takes and gives as much at once as a random number says, if there is one.
class End final : public AlteredEnd {
 public:
  using AlteredEnd::AlteredEnd;

  IoResult write(std::span<iovec> from, std::span<const int> fds) override {
    drawLimit();
    return AlteredEnd::write(from, fds);
  }
  IoResult read(std::span<iovec> into) override {
    ++reads;
    drawLimit();
    return AlteredEnd::read(into);
  }

  Random* random = nullptr;
  int reads = 0;

 private:
  void drawLimit() {
    if (random != nullptr) at_once = draw(*random, std::size_t{1} << draw(*random, 18));
  }
};

const std::shared_ptr<const TlsContext>& context() {
  static const std::shared_ptr<const TlsContext> made = TlsContext::withKey().value();
  return made;
}

TlsConnection::PresharedKey keyOf(std::uint8_t value) {
  TlsConnection::PresharedKey key{};
  key.fill(value);
  return key;
}

struct Duo {
  explicit Duo(std::uint8_t acceptors_key = 1, std::uint64_t bytes_per_key = 1U << 30)
      : dials(std::make_shared<TlsConnection>(near, context(), Role::kDialler, keyOf(1),
                                              bytes_per_key)),
        accepts(std::make_shared<TlsConnection>(far, context(), Role::kAcceptor,
                                                keyOf(acceptors_key), bytes_per_key)) {}

  // Steps of both until neither gets further.
  std::pair<Step, Step> shakeHands() {
    Step one = Step::kAgain;
    Step other = Step::kAgain;
    for (int i = 0; i < 2000; ++i) {
      if (one == Step::kAgain) one = dials->handshake();
      if (other == Step::kAgain) other = accepts->handshake();
      if (one != Step::kAgain && other != Step::kAgain) break;
    }
    dials->readAhead();
    accepts->readAhead();
    return {one, other};
  }

  Pipe there;
  Pipe back;
  std::shared_ptr<End> near = std::make_shared<End>(back, there);
  std::shared_ptr<End> far = std::make_shared<End>(there, back);
  std::shared_ptr<TlsConnection> dials;
  std::shared_ptr<TlsConnection> accepts;
  TlsStream dialler{dials};
  TlsStream acceptor{accepts};
};

using Done = std::pair<Step, Step>;
const Done kBothDone{Step::kDone, Step::kDone};

// The error that ended it; EAGAIN: all was read.
int readAll(TlsStream& stream, Bytes& into) {
  std::size_t count = 0;
  into.resize(std::size_t{4} << 20);
  while (true) {
    iovec part{into.data() + count, into.size() - count};
    const IoResult result = stream.read(std::span(&part, 1));
    count += result.count;
    if (result.error == 0 && !result.end) continue;
    into.resize(count);
    return result.error;
  }
}

TEST(TlsStream, BytesArriveAsTheyWereWhateverPiecesTheyComeIn) {
  Random random(7);
  for (int i = 0; i < 60; ++i) {
    Duo duo;
    duo.near->random = duo.far->random = &random;
    ASSERT_EQ(duo.shakeHands(), kBothDone);
    for (TlsStream* writer : {&duo.dialler, &duo.acceptor}) {
      TlsStream& reader = writer == &duo.dialler ? duo.acceptor : duo.dialler;
      Bytes bytes = randomBytes(random, draw(random, std::size_t{1} << draw(random, 21)));
      Bytes got(bytes.size());
      std::size_t written = 0;
      std::size_t read = 0;
      while (read < bytes.size()) {
        if (written < bytes.size()) {
          std::vector<iovec> parts = cut(random, bytes, written);
          const IoResult result = writer->write(parts, {});
          ASSERT_TRUE(result.error == 0 || result.error == EAGAIN);
          written += result.count;
        }
        std::vector<iovec> parts = cut(random, got, read);
        const IoResult result = reader.read(parts);
        ASSERT_TRUE(result.error == 0 || result.error == EAGAIN);
        read += result.count;
      }
      EXPECT_EQ(got, bytes);
    }
  }
}

TEST(TlsStream, WhatIsCarriedIsNotWhatWasWritten) {
  Duo duo;
  ASSERT_EQ(duo.shakeHands(), kBothDone);
  const Bytes bytes(100'000, std::byte{0x5a});
  writeAll(duo.dialler, bytes);
  EXPECT_EQ(std::search_n(duo.there.bytes.begin(), duo.there.bytes.end(), 8, std::byte{0x5a}),
            duo.there.bytes.end());
  Bytes got;
  EXPECT_EQ(readAll(duo.acceptor, got), EAGAIN);
  EXPECT_EQ(got, bytes);
}

TEST(TlsStream, OnlyTheSameKeyConnects) {
  Duo duo(2);
  EXPECT_EQ(duo.shakeHands(), Done(Step::kFailed, Step::kFailed));
  EXPECT_EQ(duo.accepts->problem().code(), ErrorCode::kConnectFailed);
}

TEST(TlsStream, AnyBitThatFlipsIsAnError) {
  Random random(3);
  const Bytes bytes = randomBytes(random, 40'000);
  for (int i = 0; i < 200; ++i) {
    Duo duo;
    ASSERT_EQ(duo.shakeHands(), kBothDone);
    const std::size_t begin = duo.there.bytes.size();
    writeAll(duo.dialler, bytes);
    duo.there.bytes[begin + draw(random, duo.there.bytes.size() - begin - 1)] ^=
        static_cast<std::byte>(1 << draw(random, 7));
    Bytes got;
    const int error = readAll(duo.acceptor, got);
    // A length that has grown waits for more; nothing that is handed out is wrong.
    EXPECT_TRUE(error == EBADMSG || error == EAGAIN) << error;
    ASSERT_LT(got.size(), bytes.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), bytes.begin()));
  }
}

TEST(TlsStream, ARecordThatIsRepeatedOrDroppedIsAnError) {
  for (const bool repeat : {true, false}) {
    Duo duo;
    ASSERT_EQ(duo.shakeHands(), kBothDone);
    const auto begin = static_cast<std::ptrdiff_t>(duo.there.bytes.size());
    writeAll(duo.dialler, Bytes(100, std::byte{1}));
    Bytes& carried = duo.there.bytes;
    const Bytes record(carried.begin() + begin, carried.end());
    if (repeat) {
      carried.insert(carried.end(), record.begin(), record.end());
    } else {
      carried.resize(static_cast<std::size_t>(begin));
      writeAll(duo.dialler, Bytes(100, std::byte{2}));
    }
    Bytes got;
    EXPECT_EQ(readAll(duo.acceptor, got), EBADMSG);
  }
}

TEST(TlsStream, TheKeyIsReplacedBeforeItWearsOut) {
  Random random(5);
  Duo duo(1, 100'000);
  ASSERT_EQ(duo.shakeHands(), kBothDone);
  const std::size_t begin = duo.there.bytes.size();
  const Bytes bytes = randomBytes(random, 1'000'000);
  writeAll(duo.dialler, bytes);
  // Each record of 16 KiB has 22 bytes more; a new key is announced by a record of 27.
  const std::size_t records = (bytes.size() + TlsConnection::kRecord - 1) / TlsConnection::kRecord;
  EXPECT_GE(duo.there.bytes.size() - begin, bytes.size() + 22 * records + 8 * 27);
  Bytes got;
  EXPECT_EQ(readAll(duo.acceptor, got), EAGAIN);
  EXPECT_EQ(got, bytes);
  writeAll(duo.acceptor, bytes);
  EXPECT_EQ(readAll(duo.dialler, got), EAGAIN);
  EXPECT_EQ(got, bytes);
}

// An acceptor whose dialler says what no TlsStream does.
struct Stranger {
  Stranger() {
    for (int i = 0; i < 10; ++i) {
      dialler.handshake();
      if (accepts->handshake() == Step::kDone) break;
    }
    accepts->readAhead();
  }
  static std::shared_ptr<const TlsContext> certified() {
    Certificates certificates;
    const TlsFiles files = certificates.worker(Certificates::authority("CA"), "worker1");
    return TlsContext::withCertificates(files).value();
  }
  void write(std::size_t count) { dialler.write(Bytes(count, std::byte{7})); }
  void takeKeys(int count) {
    for (int i = 0; i < count; ++i)
      dialler.takeNextKey();
  }

  const std::shared_ptr<const TlsContext> context = certified();
  Pipe there;
  Pipe back;
  std::shared_ptr<End> far = std::make_shared<End>(there, back);
  RawTls dialler{std::make_shared<End>(back, there), *context, true};
  std::shared_ptr<TlsConnection> accepts =
      std::make_shared<TlsConnection>(far, context, Role::kAcceptor, keyOf(0));
  TlsStream acceptor{accepts};
};

TEST(TlsStream, KeysOnEndAreABrokenConnection) {
  Stranger stranger;
  stranger.takeKeys(32);
  stranger.write(1);
  Bytes got;
  ASSERT_EQ(readAll(stranger.acceptor, got), EAGAIN);
  EXPECT_EQ(got.size(), 1U);
  stranger.takeKeys(1);
  stranger.write(1);
  EXPECT_EQ(readAll(stranger.acceptor, got), EPROTO);
  EXPECT_TRUE(got.empty());
  EXPECT_NE(stranger.accepts->problem().text().find("TLS messages without data"),
            std::string::npos);
  EXPECT_EQ(readAll(stranger.acceptor, got), EPROTO);
}

TEST(TlsStream, AFewBytesBetweenThemDoNotExcuseKeysOnEnd) {
  Stranger stranger;
  for (int i = 0; i < 40; ++i) {
    stranger.takeKeys(1);
    stranger.write(1);
  }
  Bytes got;
  EXPECT_EQ(readAll(stranger.acceptor, got), EPROTO);
  EXPECT_LE(got.size(), 32U);
}

TEST(TlsStream, WhoSendsMuchMayTakeManyKeys) {
  Stranger stranger;
  std::size_t written = 0;
  for (int i = 0; i < 200; ++i) {
    if (i % 4 == 0) stranger.takeKeys(1);
    stranger.write(TlsConnection::kRecord);
    written += TlsConnection::kRecord;
  }
  Bytes got;
  EXPECT_EQ(readAll(stranger.acceptor, got), EAGAIN);
  EXPECT_EQ(got.size(), written);
}

TEST(TlsStream, OneCallReadsABoundedNumberOfRecords) {
  Stranger stranger;
  for (int i = 0; i < 300; ++i)
    stranger.write(1);
  Bytes got(300);
  std::size_t count = 0;
  for (const std::size_t most : {128, 256, 300}) {
    iovec part{got.data() + count, got.size() - count};
    count += stranger.acceptor.read(std::span(&part, 1)).count;
    EXPECT_EQ(count, most);
    EXPECT_EQ(stranger.acceptor.holdsBytes(), true);
  }
}

TEST(TlsStream, TheHandshakeReadsNothingBehindItself) {
  Duo duo;
  ASSERT_EQ(duo.dials->handshake(), Step::kAgain);
  ASSERT_EQ(duo.accepts->handshake(), Step::kAgain);
  ASSERT_EQ(duo.dials->handshake(), Step::kDone);
  writeAll(duo.dialler, Bytes(100, std::byte{1}));
  const std::size_t before = duo.there.bytes.size() - (100 + 22);
  ASSERT_EQ(duo.accepts->handshake(), Step::kDone);
  EXPECT_EQ(duo.there.given, before);
}

TEST(TlsStream, ASmallMessageTakesOneReadBelow) {
  Duo duo;
  ASSERT_EQ(duo.shakeHands(), kBothDone);
  writeAll(duo.dialler, Bytes(100, std::byte{1}));
  Bytes room(1000);
  iovec part{room.data(), room.size()};
  const int before = duo.far->reads;
  EXPECT_EQ(duo.acceptor.read(std::span(&part, 1)).count, 100U);
  EXPECT_EQ(duo.far->reads, before + 1);
  EXPECT_FALSE(duo.acceptor.holdsBytes());
}

TEST(TlsStream, HoldsBytesThatWereReadAhead) {
  Duo duo;
  ASSERT_EQ(duo.shakeHands(), kBothDone);
  writeAll(duo.dialler, Bytes(100, std::byte{1}));
  Bytes room(10);
  iovec part{room.data(), room.size()};
  EXPECT_EQ(duo.acceptor.read(std::span(&part, 1)).count, 10U);
  EXPECT_TRUE(duo.acceptor.holdsBytes());
}

TEST(TlsStream, TheEndIsAnEnd) {
  Duo duo;
  ASSERT_EQ(duo.shakeHands(), kBothDone);
  writeAll(duo.dialler, Bytes(100, std::byte{1}));
  duo.dialler.finishWriting();
  Bytes room(1000);
  iovec part{room.data(), room.size()};
  EXPECT_EQ(duo.acceptor.read(std::span(&part, 1)).count, 100U);
  const IoResult result = duo.acceptor.read(std::span(&part, 1));
  EXPECT_TRUE(result.end);
  EXPECT_EQ(result.error, 0);
}

TEST(TlsStream, CarriesNoDescriptors) {
  Duo duo;
  ASSERT_EQ(duo.shakeHands(), kBothDone);
  Bytes bytes(1);
  iovec part{bytes.data(), 1};
  const int fd = 0;
  EXPECT_EQ(duo.dialler.write(std::span(&part, 1), std::span(&fd, 1)).error, EOPNOTSUPP);
}

}  // namespace
}  // namespace weft::transport
