#include "transport/checksum/record_writer.h"

#include <algorithm>
#include <array>

#include "transport/base/bytes.h"
#include "transport/checksum/crc32c.h"
#include "transport/checksum/record.h"

namespace weft::transport {
namespace {

// Stays in the cache from where it is copied to where the system takes it.
constexpr std::size_t kPiece = std::size_t{128} << 10;
constexpr std::size_t kPiecesAtOnce = 4;

}  // namespace

IoResult RecordWriter::write(std::span<const iovec> from) {
  if (pieces_.empty()) seal(from);
  if (pieces_.empty()) return {};
  iovec rest{out_.get() + sent_, pieces_.end() - sent_};
  const IoResult result = below_.write(std::span(&rest, 1), {});
  if (result.error != 0) return result;
  sent_ += result.count;
  return pieces_.takeSent(sent_);
}

// Makes records of what is given, as much as one write should take.
void RecordWriter::seal(std::span<const iovec> from) {
  constexpr std::size_t kMost = record::kHeadBytes + kPiece + record::kTailBytes;
  constexpr std::size_t kRoom = kPiecesAtOnce * kMost;
  if (out_ == nullptr) out_ = std::make_unique_for_overwrite<std::byte[]>(kRoom);
  sent_ = 0;
  IovecCursor rest(from);
  for (std::size_t at = 0; rest.left() > 0 && at + kMost <= kRoom;)
    at = addPiece(rest, at);
}

// Adds to out_ at `at`, and returns where what follows goes.
std::size_t RecordWriter::addPiece(IovecCursor& from, std::size_t at) {
  if (to_seal_ == 0) {
    to_seal_ = recordLength(from);
    const auto length = static_cast<std::uint32_t>(to_seal_);
    checksum_ = record::headChecksum(seed_, records_++, length);
    storeLittle(out_.get() + at, length);
    storeLittle(out_.get() + at + 4, checksum_);
    at += record::kHeadBytes;
  }
  const std::size_t size = std::min<std::uint64_t>({to_seal_, kPiece, from.left()});
  for (std::size_t left = size; left > 0;) {
    std::array<iovec, IovecCursor::kMaxEntries> parts;
    for (const iovec& part : std::span(parts).first(from.first(left, parts))) {
      checksum_ = crc32cAndCopy(checksum_, out_.get() + at,
                                {static_cast<const std::byte*>(part.iov_base), part.iov_len});
      at += part.iov_len;
      left -= part.iov_len;
      from.skip(part.iov_len);
    }
  }
  to_seal_ -= size;
  if (to_seal_ == 0) {
    storeLittle(out_.get() + at, checksum_);
    at += record::kTailBytes;
  }
  pieces_.add(at, size);
  return at;
}

// A large buffer, or the small ones up to the next large one.
std::size_t RecordWriter::recordLength(const IovecCursor& from) {
  std::array<iovec, IovecCursor::kMaxEntries> parts;
  const std::size_t used = from.first(record::kMaxPayload, parts);
  if (parts[0].iov_len >= record::kLarge) return parts[0].iov_len;
  std::size_t length = 0;
  for (const iovec& part : std::span(parts).first(used)) {
    if (part.iov_len >= record::kLarge) break;
    length += part.iov_len;
  }
  return std::min(length, record::kMaxShared);
}

}  // namespace weft::transport
