// Records with checksums: whatever pieces bytes are written, carried and read in, they arrive as
// they were; whatever is done to them on the way is an error.
#include "transport/checksum/checked_stream.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/stream_pieces.h"
#include "transport/checksum/crc32c.h"
#include "transport/checksum/record.h"

namespace weft::transport {
namespace {

std::span<const std::byte> asBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// What a connection carries: takes and gives as much at once as `most` says.
class Wire final : public Stream {
 public:
  explicit Wire(Random* random = nullptr) : random_(random) {}
  IoResult write(std::span<iovec> from, std::span<const int>) override {
    std::size_t allowed = random_ == nullptr ? SIZE_MAX : draw(*random_, 1 << draw(*random_, 18));
    IoResult result;
    for (const iovec& part : from) {
      const std::size_t some = std::min(allowed, part.iov_len);
      const auto* const begin = static_cast<const std::byte*>(part.iov_base);
      bytes.insert(bytes.end(), begin, begin + some);
      result.count += some;
      allowed -= some;
    }
    if (result.count == 0) result.error = EAGAIN;
    return result;
  }
  IoResult read(std::span<iovec> into) override {
    std::size_t left = bytes.size() - given;
    if (random_ != nullptr) left = std::min(left, draw(*random_, 1 << draw(*random_, 18)));
    IoResult result;
    for (const iovec& part : into) {
      const std::size_t some = std::min(left, part.iov_len);
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(given), some,
                  static_cast<std::byte*>(part.iov_base));
      given += some;
      result.count += some;
      left -= some;
    }
    if (result.count == 0) {
      result.end = ended && given == bytes.size();
      result.error = result.end ? 0 : EAGAIN;
    }
    return result;
  }
  void finishWriting() override { ended = true; }
  void breakOff() override {}
  int pollFd() const override { return -1; }
  const char* transportName() const override { return "tcp"; }

  Bytes bytes;
  std::size_t given = 0;
  bool ended = false;

 private:
  Random* const random_;
};

struct Pair {
  explicit Pair(Random* random = nullptr) : wire(std::make_shared<Wire>(random)) {}
  std::shared_ptr<Wire> wire;
  CheckedStream writer{wire, {1, 2}};
  CheckedStream reader{wire, {2, 1}};
};

// Reads into one place after the other until nothing is left; the error that ended it.
int readAll(CheckedStream& stream, Bytes& into) {
  std::size_t count = 0;
  while (true) {
    iovec part{into.data() + count, into.size() - count};
    if (part.iov_len == 0) return 0;
    const IoResult result = stream.read(std::span(&part, 1));
    if (result.error != 0 || result.end) {
      into.resize(count);
      return result.error;
    }
    count += result.count;
  }
}

std::uint32_t crc32cByBits(std::uint32_t crc, std::span<const std::byte> bytes) {
  std::uint32_t state = ~crc;
  for (const std::byte byte : bytes) {
    state ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
      state = (state >> 1) ^ ((state & 1) != 0 ? 0x82F63B78U : 0);
  }
  return ~state;
}

TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(crc32c(0, asBytes("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c(0, Bytes(32)), 0x8A9136AAU);  // RFC 3720 B.4
  EXPECT_EQ(crc32c(0, Bytes(32, std::byte{0xFF})), 0x62A8AB43U);
}

TEST(Crc32c, AgreesWithItsDefinition) {
  Random random(1);
  const Bytes bytes = randomBytes(random, 100'000);
  for (int i = 0; i < 300; ++i) {
    const std::size_t from = draw(random, 64);
    const auto part =
        std::span(bytes).subspan(from, draw(random, i % 2 == 0 ? 300 : bytes.size() - from));
    const auto begin = static_cast<std::uint32_t>(random());
    EXPECT_EQ(crc32c(begin, part), crc32cByBits(begin, part)) << part.size();
    const std::size_t middle = draw(random, part.size());
    EXPECT_EQ(crc32c(crc32c(begin, part.first(middle)), part.subspan(middle)), crc32c(begin, part));
    Bytes copy(part.size() + 1, std::byte{7});
    EXPECT_EQ(crc32cAndCopy(begin, copy.data(), part), crc32c(begin, part));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), copy.begin()));
    EXPECT_EQ(copy.back(), std::byte{7});
  }
}

TEST(CheckedStream, CarriesBytesInWhateverPieces) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Pair pair(&random);
    Bytes sent = randomBytes(random, draw(random, 1 << 20));
    Bytes got;
    std::size_t written = 0;
    Bytes room;
    std::vector<iovec> places;  // others once something was read, as a FrameReader's
    while (got.size() < sent.size()) {
      if (written < sent.size()) {
        std::vector<iovec> parts = cut(random, sent, written);
        const IoResult result = pair.writer.write(parts, {});
        ASSERT_TRUE(result.error == 0 || result.error == EAGAIN) << result.error;
        written += result.count;
      }
      if (places.empty()) {
        room.assign(sent.size() - got.size(), std::byte{0});
        places = cut(random, room, 0);
      }
      const IoResult result = pair.reader.read(places);
      ASSERT_TRUE(result.error == 0 || result.error == EAGAIN) << result.error;
      ASSERT_FALSE(result.end);
      got.insert(got.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(result.count));
      if (result.count > 0) places.clear();
    }
    ASSERT_EQ(written, sent.size());
    ASSERT_EQ(got, sent);
  }
}

TEST(CheckedStream, ReadsLargeBuffersToTheirPlaces) {
  Random random(3);
  Pair pair;
  const Bytes sent = randomBytes(random, 3 * record::kMaxPayload);
  writeAll(pair.writer, sent);
  Bytes got(sent.size());
  EXPECT_EQ(readAll(pair.reader, got), 0);
  EXPECT_EQ(got, sent);
  EXPECT_FALSE(pair.reader.holdsBytes());
}

// A reader that discards a message has no places for its large buffers.
TEST(CheckedStream, GivesALargeRecordInSmallParts) {
  Random random(8);
  Pair pair;
  const Bytes sent = randomBytes(random, record::kMaxPayload + 100'000);
  writeAll(pair.writer, sent);
  writeAll(pair.writer, sent);
  Bytes got;
  while (got.size() < 2 * sent.size()) {
    Bytes some(std::min<std::size_t>(65'536, 2 * sent.size() - got.size()));
    ASSERT_EQ(readAll(pair.reader, some), 0);
    got.insert(got.end(), some.begin(), some.end());
  }
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), got.begin()));
  EXPECT_TRUE(
      std::equal(sent.begin(), sent.end(), got.begin() + static_cast<std::ptrdiff_t>(sent.size())));
}

TEST(CheckedStream, WhatIsWrittenMayChangeMeanwhile) {
  Random random(4);
  Pair pair(&random);
  Bytes sent(record::kMaxPayload + 200'000, std::byte{1});
  Bytes got(sent.size());
  std::size_t written = 0;
  std::size_t read = 0;
  while (read < got.size()) {
    if (written < sent.size()) {
      iovec part{sent.data() + written, sent.size() - written};
      written += pair.writer.write(std::span(&part, 1), {}).count;
      std::fill(sent.begin(), sent.end(), static_cast<std::byte>(random()));
    }
    iovec place{got.data() + read, got.size() - read};
    const IoResult result = pair.reader.read(std::span(&place, 1));
    ASSERT_NE(result.error, EBADMSG);
    read += result.count;
  }
}

TEST(CheckedStream, TheEndIsTheEnd) {
  Pair pair;
  writeAll(pair.writer, Bytes(100));
  pair.writer.finishWriting();
  Bytes got(200);
  EXPECT_EQ(readAll(pair.reader, got), 0);
  EXPECT_EQ(got.size(), 100U);
}

// Three records, of which something is done to the middle one.
struct Records {
  Records() {
    Random random(5);
    for (const std::size_t size : {100, 20'000, 300}) {
      writeAll(pair.writer, randomBytes(random, size));
      ends.push_back(pair.wire->bytes.size());
    }
  }
  Bytes record(std::size_t index) const {
    const auto begin = pair.wire->bytes.begin();
    const auto from = static_cast<std::ptrdiff_t>(index == 0 ? 0 : ends[index - 1]);
    return {begin + from, begin + static_cast<std::ptrdiff_t>(ends[index])};
  }
  void carry(const std::vector<std::size_t>& order) {
    Bytes bytes;
    for (const std::size_t index : order) {
      const Bytes one = record(index);
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    pair.wire->bytes = std::move(bytes);
  }
  int read(std::size_t& count) {
    pair.wire->ended = true;
    Bytes got(40'000);
    const int error = readAll(pair.reader, got);
    count = got.size();
    return error;
  }
  Pair pair;
  std::vector<std::size_t> ends;
};

TEST(CheckedStream, FindsEveryFlippedBit) {
  Random random(6);
  const std::size_t all = Records().pair.wire->bytes.size();
  for (std::size_t at = 0; at < all; at += 1 + draw(random, 30)) {
    Records records;
    records.pair.wire->bytes[at] ^= static_cast<std::byte>(1U << draw(random, 7));
    std::size_t count = 0;
    const int error = records.read(count);
    EXPECT_EQ(error, EBADMSG) << at;
    EXPECT_LT(count, 20'400U) << at;
  }
}

TEST(CheckedStream, FindsWhatWasDroppedRepeatedOrReordered) {
  const std::vector<std::vector<std::size_t>> orders{{0, 2}, {0, 0, 1, 2}, {0, 2, 1}, {1, 2}};
  for (const auto& order : orders) {
    Records records;
    records.carry(order);
    std::size_t count = 0;
    EXPECT_EQ(records.read(count), EBADMSG);
    EXPECT_LE(count, 100U);
  }
}

TEST(CheckedStream, FindsAnotherConnectionsBytes) {
  Records records;
  CheckedStream other(records.pair.wire, {3, 1});
  Bytes got(100);
  EXPECT_EQ(readAll(other, got), EBADMSG);
  EXPECT_TRUE(got.empty());
}

TEST(CheckedStream, RefusesLengthsThatAreNone) {
  for (const std::uint32_t length : {0U, 0xFFFFFFFFU, 2'000'000U}) {
    Pair pair;
    pair.wire->bytes.resize(8);
    std::copy_n(reinterpret_cast<const std::byte*>(&length), 4, pair.wire->bytes.begin());
    Bytes got(100);
    EXPECT_EQ(readAll(pair.reader, got), EBADMSG);
  }
}

}  // namespace
}  // namespace weft::transport
