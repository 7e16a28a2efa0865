#include "transport/checksum/record_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/base/bytes.h"
#include "transport/base/check.h"
#include "transport/checksum/crc32c.h"
#include "transport/checksum/record.h"

namespace weft::transport {
namespace {

constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;

}  // namespace

IoResult RecordReader::read(std::span<iovec> into) {
  IovecCursor places(into);
  places.skip(in_place_);
  std::size_t count = 0;
  int error = 0;
  const auto wantsMore = [&] { return places.left() > 0 || state_ == State::kTail; };
  while (error == 0 && wantsMore() && !(count > 0 && largeComesNext())) {
    switch (state_) {
      case State::kHead:
        error = here().size() < record::kHeadBytes ? fill() : openRecord(places);
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
        begin_ += record::kTailBytes;
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
bool RecordReader::largeComesNext() const {
  return state_ == State::kHead && here().size() >= record::kHeadBytes &&
         loadLittle<std::uint32_t>(here().data()) >= record::kLarge;
}

// Reads what there is behind what is here. ENODATA: the stream has ended.
int RecordReader::fill() {
  makeRoom();
  iovec room{here_.get() + end_, std::min(kReadAtOnce, room_ - end_)};
  const IoResult result = below_.read(std::span(&room, 1));
  end_ += result.count;
  // The rest of a record is of no use before it is whole.
  if (result.error == EAGAIN)
    below_.wakeAt(state_ == State::kHere ? length_ + record::kTailBytes - here().size() : 1);
  return result.end ? ENODATA : result.error;
}

// For one read behind what is here. A large record that the reader has no places for, because it
// discards a message, takes more room while it comes.
void RecordReader::makeRoom() {
  constexpr std::size_t kRoom =
      record::kHeadBytes + record::kMaxShared + record::kTailBytes + kReadAtOnce;
  const std::size_t coming = state_ == State::kHere ? length_ + record::kTailBytes : 0;
  const std::size_t wanted = std::max(kRoom, coming + kReadAtOnce);
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

int RecordReader::openRecord(const IovecCursor& places) {
  length_ = loadLittle<std::uint32_t>(here().data());
  found_ = record::headChecksum(seed_, records_++, static_cast<std::uint32_t>(length_));
  const bool right = loadLittle<std::uint32_t>(here().data() + 4) == found_;
  begin_ += record::kHeadBytes;
  if (!right || length_ == 0 || length_ > record::kMaxPayload) return EBADMSG;
  state_ = length_ >= record::kLarge && places.left() >= length_ ? State::kInPlace : State::kHere;
  return 0;
}

int RecordReader::readHere() {
  if (here().size() < length_ + record::kTailBytes) return fill();
  found_ = crc32c(found_, here().first(length_));
  state_ = State::kVerified;
  return loadLittle<std::uint32_t>(here().data() + length_) == found_ ? 0 : EBADMSG;
}

int RecordReader::readInPlace(IovecCursor& places) {
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
IoResult RecordReader::readThrough(IovecCursor& places) {
  std::array<iovec, IovecCursor::kMaxEntries + 1> parts;
  const std::size_t left = length_ - in_place_;
  const std::size_t used = places.first(left, std::span(parts).first(IovecCursor::kMaxEntries));
  const std::uint64_t wanted = bytesOf(std::span(parts).first(used));
  const bool whole = wanted == left;
  begin_ = end_ = 0;
  // With the next record's head.
  if (whole) parts[used] = {here_.get(), record::kTailBytes + record::kHeadBytes};
  IoResult result = below_.read(std::span(parts).first(used + (whole ? 1 : 0)));
  if (result.error == EAGAIN) below_.wakeAt(left + record::kTailBytes);
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

// Reads the tail of a record whose bytes are in their places.
int RecordReader::readTail() {
  if (here().size() < record::kTailBytes) return fill();
  const bool right = loadLittle<std::uint32_t>(here().data()) == found_;
  begin_ += record::kTailBytes;
  state_ = State::kHead;
  return right ? 0 : EBADMSG;
}

}  // namespace weft::transport
