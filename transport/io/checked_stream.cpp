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
constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;
constexpr std::size_t kMaxEntries = 64;

}  // namespace

CheckedStream::Checksum::Checksum(std::uint32_t seed, std::uint64_t number, std::uint32_t bytes) {
  std::array<std::byte, 16> head;
  storeLittle(head.data(), seed);
  storeLittle(head.data() + 4, bytes);
  storeLittle(head.data() + 8, number);
  add(head);
}

void CheckedStream::Checksum::add(std::span<const std::byte> payload) {
  value_ = crc32c(value_, payload);
}

std::uint64_t CheckedStream::Targets::left() const { return bytesOf(entries_) - offset_; }

void CheckedStream::Targets::skip(std::size_t bytes) {
  offset_ += bytes;
  while (!entries_.empty() && offset_ >= entries_.front().iov_len) {
    offset_ -= entries_.front().iov_len;
    entries_ = entries_.subspan(1);
  }
}

std::size_t CheckedStream::Targets::copy(std::span<const std::byte> from) {
  std::array<iovec, kMaxEntries> parts;
  std::size_t copied = 0;
  while (copied < from.size() && !entries_.empty()) {
    const std::size_t used = first(from.size() - copied, parts);
    std::size_t here = 0;
    for (const iovec& part : std::span(parts).first(used)) {
      std::memcpy(part.iov_base, from.data() + copied + here, part.iov_len);
      here += part.iov_len;
    }
    copied += here;
    skip(here);
  }
  return copied;
}

std::size_t CheckedStream::Targets::first(std::size_t bytes, std::span<iovec> out) const {
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
  Targets targets(into);
  targets.skip(in_place_);
  std::size_t count = 0;
  int error = 0;
  while (error == 0 && targets.left() > 0 && !(count > 0 && largeComesNext())) {
    if (state_ == State::kVerified) {
      const std::size_t some = targets.copy(here().first(length_));
      begin_ += some;
      length_ -= some;
      count += some;
      if (length_ == 0) state_ = State::kHead;
    } else if (state_ == State::kHead) {
      error = here().size() < kHeadBytes ? fill() : openRecord(targets);
    } else if (state_ == State::kHere) {
      error = readHere();
    } else {
      error = readInPlace(targets);
      if (state_ == State::kHead) count += std::exchange(in_place_, 0);
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
  constexpr std::size_t kRoom = kHeadBytes + kMaxRecord + kReadAtOnce;
  if (here_ == nullptr) here_ = std::make_unique_for_overwrite<std::byte[]>(kRoom);
  if (begin_ == end_) begin_ = end_ = 0;
  if (kRoom - end_ < kReadAtOnce) {
    std::memmove(here_.get(), here_.get() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  iovec room{here_.get() + end_, std::min(kReadAtOnce, kRoom - end_)};
  const IoResult result = below_->read(std::span(&room, 1));
  end_ += result.count;
  if (result.error == EAGAIN) wakeFor(state_ == State::kHere ? length_ - here().size() : 1);
  return result.end ? ENODATA : result.error;
}

int CheckedStream::openRecord(const Targets& targets) {
  length_ = loadLittle<std::uint32_t>(here().data());
  expected_ = loadLittle<std::uint32_t>(here().data() + 4);
  begin_ += kHeadBytes;
  if (length_ == 0 || length_ > kMaxRecord) return EBADMSG;
  found_ = Checksum(seeds_.reads, records_read_++, static_cast<std::uint32_t>(length_));
  state_ = length_ >= kLarge && targets.left() >= length_ ? State::kInPlace : State::kHere;
  return 0;
}

int CheckedStream::readHere() {
  if (here().size() < length_) return fill();
  found_.add(here().first(length_));
  state_ = State::kVerified;
  return found_.value() == expected_ ? 0 : EBADMSG;
}

int CheckedStream::readInPlace(Targets& targets) {
  std::array<iovec, kMaxEntries + 1> parts;
  std::size_t came = std::min(length_ - in_place_, here().size());
  if (came > 0) {
    found_.add(here().first(came));
    WEFT_CHECK(targets.copy(here().first(came)) == came, "the targets of the read before");
    begin_ += came;
  } else {
    begin_ = end_ = 0;
    const std::size_t used =
        targets.first(length_ - in_place_, std::span(parts).first(kMaxEntries));
    const std::uint64_t wanted = bytesOf(std::span(parts).first(used));
    const bool whole = wanted == length_ - in_place_;
    if (whole) parts[used] = {here_.get(), kHeadBytes};  // the next record's
    const IoResult result = below_->read(std::span(parts).first(used + (whole ? 1 : 0)));
    if (result.error == EAGAIN) wakeFor(length_ - in_place_);
    if (result.error != 0 || result.end) return result.end ? ENODATA : result.error;
    came = std::min<std::size_t>(result.count, wanted);
    end_ = result.count - came;
    std::size_t left = came;
    for (const iovec& part : std::span(parts).first(used)) {
      const std::size_t some = std::min(left, part.iov_len);
      found_.add({static_cast<const std::byte*>(part.iov_base), some});
      left -= some;
    }
    targets.skip(came);
  }
  in_place_ += came;
  if (in_place_ < length_) return 0;
  state_ = State::kHead;
  return found_.value() == expected_ ? 0 : EBADMSG;
}

// The rest of a record is of no use before it is whole.
void CheckedStream::wakeFor(std::size_t bytes) {
  if (bytes != std::exchange(wake_at_, bytes)) below_->wakeAt(bytes);
}

// --- writing ---

IoResult CheckedStream::write(std::span<iovec> from, std::span<const int> fds) {
  if (!fds.empty()) return {0, EOPNOTSUPP, false};
  if (sealed_.empty()) seal(from);
  if (sealed_.empty()) return {};
  iovec rest{out_.get() + sent_, sealed_.back().end - sent_};
  const IoResult result = below_->write(std::span(&rest, 1), {});
  if (result.error != 0) return result;
  sent_ += result.count;
  std::size_t count = 0;
  while (!sealed_.empty() && sealed_.front().end <= sent_) {
    count += sealed_.front().payload;
    sealed_.pop_front();
  }
  return {count, count > 0 ? 0 : EAGAIN, false};
}

// Makes records of what is given, as much as one write should take.
void CheckedStream::seal(std::span<const iovec> from) {
  constexpr std::size_t kRoom = 2 * (kHeadBytes + kMaxRecord);
  if (out_ == nullptr) out_ = std::make_unique_for_overwrite<std::byte[]>(kRoom);
  sent_ = 0;
  std::size_t at = 0;
  std::size_t offset = 0;  // in the first entry
  while (!from.empty() && at + kHeadBytes + kMaxRecord <= kRoom)
    addRecord(at, from, offset);
}

void CheckedStream::addRecord(std::size_t& at, std::span<const iovec>& from, std::size_t& offset) {
  const auto size = [&] { return from.front().iov_len - offset; };
  std::byte* const head = out_.get() + at;
  std::byte* const payload = head + kHeadBytes;
  std::size_t length = 0;
  while (!from.empty() && length < kMaxRecord) {
    const bool large = size() >= kLarge;
    if (large && length > 0) break;
    const std::size_t some = std::min(size(), kMaxRecord - length);
    if (some > 0) {
      std::memcpy(payload + length, static_cast<const std::byte*>(from.front().iov_base) + offset,
                  some);
    }
    length += some;
    offset += some;
    if (size() == 0) {
      from = from.subspan(1);
      offset = 0;
    }
    if (large) break;
  }
  if (length == 0) return;
  Checksum checksum(seeds_.writes, records_written_++, static_cast<std::uint32_t>(length));
  checksum.add({payload, length});
  storeLittle(head, static_cast<std::uint32_t>(length));
  storeLittle(head + 4, checksum.value());
  at += kHeadBytes + length;
  sealed_.push_back({at, length});
}

}  // namespace weft::transport
