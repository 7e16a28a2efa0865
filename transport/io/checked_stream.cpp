#include "transport/io/checked_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/base/bytes.h"
#include "transport/base/check.h"
#include "transport/io/crc32c.h"

namespace weft::transport {
namespace {

// A smaller buffer shares its record with its neighbours, and is copied when it arrives.
constexpr std::size_t kLarge = std::size_t{16} << 10;
constexpr std::size_t kMaxShared = std::size_t{128} << 10;  // such a record
constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;
// Stays in the cache from where it is copied to where the system takes it.
constexpr std::size_t kPiece = std::size_t{128} << 10;
constexpr std::size_t kPiecesAtOnce = 4;
constexpr std::size_t kMaxEntries = 64;

// What a record's checksum begins with.
std::uint32_t headChecksum(std::uint32_t seed, std::uint64_t number, std::uint32_t bytes) {
  std::array<std::byte, 16> head;
  storeLittle(head.data(), seed);
  storeLittle(head.data() + 4, bytes);
  storeLittle(head.data() + 8, number);
  return crc32c(0, head);
}

}  // namespace

void CheckedStream::Places::skip(std::size_t bytes) {
  left_ -= bytes;
  offset_ += bytes;
  while (!entries_.empty() && offset_ >= entries_.front().iov_len) {
    offset_ -= entries_.front().iov_len;
    entries_ = entries_.subspan(1);
  }
}

std::size_t CheckedStream::Places::fillFrom(std::span<const std::byte> bytes) {
  std::array<iovec, kMaxEntries> parts;
  std::size_t copied = 0;
  while (copied < bytes.size() && left_ > 0) {
    const std::size_t used = first(bytes.size() - copied, parts);
    std::size_t here = 0;
    for (const iovec& part : std::span(parts).first(used)) {
      std::memcpy(part.iov_base, bytes.data() + copied + here, part.iov_len);
      here += part.iov_len;
    }
    copied += here;
    skip(here);
  }
  return copied;
}

std::size_t CheckedStream::Places::first(std::size_t bytes, std::span<iovec> out) const {
  std::size_t used = 0;
  std::size_t offset = offset_;
  for (auto entry = entries_.begin(); entry != entries_.end() && used < out.size() && bytes > 0;
       ++entry) {
    const std::size_t some = std::min(bytes, entry->iov_len - offset);
    if (some > 0) out[used++] = {static_cast<std::byte*>(entry->iov_base) + offset, some};
    bytes -= some;
    offset = 0;
  }
  return used;
}

CheckedStream::CheckedStream(std::shared_ptr<Stream> below, Seeds seeds)
    : LayeredStream(std::move(below)), seeds_(seeds) {}

// --- reading ---

IoResult CheckedStream::read(std::span<iovec> into) {
  Places places(into);
  places.skip(in_place_);
  std::size_t count = 0;
  int error = 0;
  const auto wantsMore = [&] { return places.left() > 0 || state_ == State::kTail; };
  while (error == 0 && wantsMore() && !(count > 0 && largeComesNext())) {
    switch (state_) {
      case State::kHead:
        error = here().size() < kHeadBytes ? fill() : openRecord(places);
        break;
      case State::kHere:
        error = readHere();
        break;
      case State::kInPlace:
        error = readInPlace(places);
        break;
      case State::kTail:
        error = readTail();
        if (state_ == State::kHead) count += std::exchange(in_place_, 0);
        break;
      case State::kVerified: {
        const std::size_t some = places.fillFrom(here().first(length_));
        begin_ += some;
        length_ -= some;
        count += some;
        if (length_ > 0) break;
        begin_ += kTailBytes;
        state_ = State::kHead;
      }
    }
  }
  holds_bytes_ = error == 0 && begin_ < end_;
  if (error == EBADMSG) return {0, EBADMSG, false};
  if (count > 0) return {count, 0, false};
  return error == ENODATA ? IoResult{0, 0, true} : IoResult{0, error, false};
}

// A large record has a read of its own: once the reader has taken what came before, it gives the
// places where the record belongs, and those stay until the record is whole.
bool CheckedStream::largeComesNext() const {
  return state_ == State::kHead && here().size() >= kHeadBytes &&
         loadLittle<std::uint32_t>(here().data()) >= kLarge;
}

// Reads what there is behind what is here. ENODATA: the stream has ended.
int CheckedStream::fill() {
  makeRoom();
  iovec room{here_.get() + end_, std::min(kReadAtOnce, room_ - end_)};
  const IoResult result = below_->read(std::span(&room, 1));
  end_ += result.count;
  if (result.error == EAGAIN)
    wakeFor(state_ == State::kHere ? length_ + kTailBytes - here().size() : 1);
  return result.end ? ENODATA : result.error;
}

// For one read behind what is here. A large record that the reader has no places for, because it
// discards a message, takes more room while it comes.
void CheckedStream::makeRoom() {
  constexpr std::size_t kRoom = kHeadBytes + kMaxShared + kTailBytes + kReadAtOnce;
  const std::size_t record = state_ == State::kHere ? length_ + kTailBytes : 0;
  const std::size_t wanted = std::max(kRoom, record + kReadAtOnce);
  if (begin_ == end_) begin_ = end_ = 0;
  if (room_ < wanted || (room_ > wanted && end_ == 0)) {
    auto larger = std::make_unique_for_overwrite<std::byte[]>(wanted);
    std::copy(here().begin(), here().end(), larger.get());
    here_ = std::move(larger);
    room_ = wanted;
  } else if (room_ - end_ < kReadAtOnce) {
    std::memmove(here_.get(), here_.get() + begin_, end_ - begin_);
  } else {
    return;
  }
  end_ -= std::exchange(begin_, 0);
}

int CheckedStream::openRecord(const Places& places) {
  length_ = loadLittle<std::uint32_t>(here().data());
  found_ = headChecksum(seeds_.reads, records_read_++, static_cast<std::uint32_t>(length_));
  const bool right = loadLittle<std::uint32_t>(here().data() + 4) == found_;
  begin_ += kHeadBytes;
  if (!right || length_ == 0 || length_ > kMaxRecord) return EBADMSG;
  state_ = length_ >= kLarge && places.left() >= length_ ? State::kInPlace : State::kHere;
  return 0;
}

int CheckedStream::readHere() {
  if (here().size() < length_ + kTailBytes) return fill();
  found_ = crc32c(found_, here().first(length_));
  state_ = State::kVerified;
  return loadLittle<std::uint32_t>(here().data() + length_) == found_ ? 0 : EBADMSG;
}

int CheckedStream::readInPlace(Places& places) {
  std::size_t came = std::min(length_ - in_place_, here().size());
  if (came > 0) {
    found_ = crc32c(found_, here().first(came));
    WEFT_CHECK(places.fillFrom(here().first(came)) == came, "the places of the read before");
    begin_ += came;
  } else {
    const IoResult result = readThrough(places);
    if (result.error != 0 || result.end) return result.end ? ENODATA : result.error;
    came = result.count;
  }
  in_place_ += came;
  if (in_place_ == length_) state_ = State::kTail;
  return 0;
}

// Reads the rest of the record to its places, and what follows to here.
IoResult CheckedStream::readThrough(Places& places) {
  std::array<iovec, kMaxEntries + 1> parts;
  const std::size_t left = length_ - in_place_;
  const std::size_t used = places.first(left, std::span(parts).first(kMaxEntries));
  const std::uint64_t wanted = bytesOf(std::span(parts).first(used));
  const bool whole = wanted == left;
  begin_ = end_ = 0;
  if (whole) parts[used] = {here_.get(), kTailBytes + kHeadBytes};  // the next record's head
  IoResult result = below_->read(std::span(parts).first(used + (whole ? 1 : 0)));
  if (result.error == EAGAIN) wakeFor(left + kTailBytes);
  end_ = result.count - std::min<std::size_t>(result.count, wanted);
  result.count -= end_;
  std::size_t unchecked = result.count;
  for (const iovec& part : std::span(parts).first(used)) {
    const std::size_t some = std::min(unchecked, part.iov_len);
    found_ = crc32c(found_, {static_cast<const std::byte*>(part.iov_base), some});
    unchecked -= some;
  }
  places.skip(result.count);
  return result;
}

// Of a record that is in its places.
int CheckedStream::readTail() {
  if (here().size() < kTailBytes) return fill();
  const bool right = loadLittle<std::uint32_t>(here().data()) == found_;
  begin_ += kTailBytes;
  state_ = State::kHead;
  return right ? 0 : EBADMSG;
}

// The rest of a record is of no use before it is whole, but a long one is read in pieces.
void CheckedStream::wakeFor(std::size_t bytes) {
  bytes = std::min(bytes, kWakePiece);
  if (bytes != std::exchange(wake_at_, bytes)) below_->wakeAt(bytes);
}

// --- writing ---

IoResult CheckedStream::write(std::span<iovec> from, std::span<const int> fds) {
  if (!fds.empty()) return {0, EOPNOTSUPP, false};
  if (pieces_.empty()) seal(from);
  if (pieces_.empty()) return {};
  iovec rest{out_.get() + sent_, pieces_.back().end - sent_};
  const IoResult result = below_->write(std::span(&rest, 1), {});
  if (result.error != 0) return result;
  sent_ += result.count;
  std::size_t count = 0;
  while (!pieces_.empty() && pieces_.front().end <= sent_) {
    count += pieces_.front().payload;
    pieces_.pop_front();
  }
  return {count, count > 0 ? 0 : EAGAIN, false};
}

// Makes records of what is given, as much as one write should take.
void CheckedStream::seal(std::span<const iovec> from) {
  constexpr std::size_t kMost = kHeadBytes + kPiece + kTailBytes;
  constexpr std::size_t kRoom = kPiecesAtOnce * kMost;
  if (out_ == nullptr) out_ = std::make_unique_for_overwrite<std::byte[]>(kRoom);
  sent_ = 0;
  Places rest(from);
  for (std::size_t at = 0; rest.left() > 0 && at + kMost <= kRoom;)
    at = addPiece(rest, at);
}

// Adds to out_ at `at`, and returns where what follows goes.
std::size_t CheckedStream::addPiece(Places& from, std::size_t at) {
  if (to_seal_ == 0) {
    to_seal_ = recordLength(from);
    const auto length = static_cast<std::uint32_t>(to_seal_);
    checksum_ = headChecksum(seeds_.writes, records_written_++, length);
    storeLittle(out_.get() + at, length);
    storeLittle(out_.get() + at + 4, checksum_);
    at += kHeadBytes;
  }
  const std::size_t size = std::min<std::uint64_t>({to_seal_, kPiece, from.left()});
  for (std::size_t left = size; left > 0;) {
    std::array<iovec, kMaxEntries> parts;
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
    at += kTailBytes;
  }
  pieces_.push_back({at, size});
  return at;
}

// A large buffer, or the small ones up to the next large one.
std::size_t CheckedStream::recordLength(const Places& from) {
  std::array<iovec, kMaxEntries> parts;
  const std::size_t used = from.first(kMaxRecord, parts);
  if (parts[0].iov_len >= kLarge) return parts[0].iov_len;
  std::size_t length = 0;
  for (const iovec& part : std::span(parts).first(used)) {
    if (part.iov_len >= kLarge) break;
    length += part.iov_len;
  }
  return std::min(length, kMaxShared);
}

}  // namespace weft::transport
