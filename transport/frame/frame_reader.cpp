#include "transport/frame/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "transport/base/bytes.h"
#include "transport/base/check.h"

namespace weft::transport {
namespace {

constexpr std::size_t kTableEntry = sizeof(std::uint64_t);
constexpr std::size_t kKeepHeaderStore = std::size_t{1} << 20;  // a rare larger one is given back

Error protocolError(std::string text) { return {ErrorCode::kProtocol, std::move(text)}; }

}  // namespace

Result<OwnedBuffer> FrameSink::arenaBuffer(const ArenaDescriptor&, std::uint64_t) {
  return protocolError("a buffer in shared memory that was not offered");
}

Result<OwnedBuffer> FrameSink::exportedBuffer(const ArenaDescriptor&, std::uint64_t) {
  return protocolError("a buffer in exported memory, which is not used here");
}

Error FrameSink::readFromBulk(std::span<const iovec>) {
  return protocolError("a half of a message over a second connection, of which there is none");
}

Error FrameSink::onArenaFrame(FrameKind, std::span<const std::byte>) {
  return protocolError("a frame about shared memory, which is not used here");
}

FrameReader::FrameReader(const Limits& limits, FrameSink& sink, std::uint64_t received)
    : limits_(limits),
      sink_(sink),
      receive_(std::make_unique_for_overwrite<std::byte[]>(kReceiveBytes)),
      last_sequence_(received) {}

std::size_t FrameReader::prepare(std::span<iovec> out) {
  WEFT_CHECK(out.size() >= 2, "room for a target and for what follows it");
  std::size_t count = 0;
  if (state_ == State::kHeader && head_.header_bytes > kReceiveBytes) {
    out[count++] = {header_store_.get() + header_filled_, head_.header_bytes - header_filled_};
  } else if (state_ == State::kBuffers) {
    std::uint64_t offset = buffer_filled_;
    std::uint64_t covered = 0;
    for (std::size_t i = buffer_index_; i < buffers_.size() && count + 1 < out.size(); ++i) {
      if (unread_[i] > offset) {
        out[count++] = {buffers_[i].data + offset, static_cast<std::size_t>(unread_[i] - offset)};
        covered += unread_[i] - offset;
      }
      offset = 0;
    }
    // With buffers left over, what follows these would be theirs, not the next frame's.
    if (covered < left_) return count;
  }
  out[count++] = {receive_.get() + end_, kReceiveBytes - end_};
  return count;
}

Error FrameReader::commit(std::size_t count) {
  if (state_ == State::kHeader && head_.header_bytes > kReceiveBytes) {
    const std::size_t taken = std::min<std::size_t>(count, head_.header_bytes - header_filled_);
    header_filled_ += taken;
    count -= taken;
  } else if (state_ == State::kBuffers) {
    const std::size_t taken = static_cast<std::size_t>(std::min<std::uint64_t>(count, left_));
    fillBuffers(taken);
    count -= taken;
  }
  end_ += count;
  WEFT_CHECK(end_ <= kReceiveBytes, "more bytes than there was room for");
  return parse();
}

Error FrameReader::resume() { return waiting() ? parse() : Error::ok(); }

// As far as the bytes that are here go.
Error FrameReader::parse() {
  while (true) {
    Result<Step> result = step();
    if (!result.ok()) return result.error();
    if (result.value() == Step::kNeedMore) break;
  }
  if (begin_ > 0) {
    std::memmove(receive_.get(), receive_.get() + begin_, available());
    end_ -= begin_;
    begin_ = 0;
  }
  return Error::ok();
}

Result<FrameReader::Step> FrameReader::step() {
  switch (state_) {
    case State::kHead:
      return readHead();
    case State::kTable:
      return readTable();
    case State::kPlaces:
      return readPlaces();
    case State::kHeader:
      return readHeader();
    case State::kBuffers:
      return readBuffers();
    case State::kDiscard:
      return discard();
    case State::kBulk:
      return whole();
    case State::kEnded:
      begin_ = end_;
      return Step::kNeedMore;
  }
  return Step::kNeedMore;
}

Result<FrameReader::Step> FrameReader::readHead() {
  if (available() < FrameHead::kBytes) return Step::kNeedMore;
  Result<FrameHead> head = decodeFrameHead(
      std::span<const std::byte, FrameHead::kBytes>(receive_.get() + begin_, FrameHead::kBytes),
      limits_);
  if (!head.ok()) return head.error();
  begin_ += FrameHead::kBytes;
  head_ = head.value();

  const bool data = head_.kind == FrameKind::kData;
  const std::uint64_t expected = last_sequence_ + (data ? 1 : 0);
  duplicate_ = data && head_.sequence < expected;
  if (head_.sequence != expected && !duplicate_) {
    return protocolError("a frame numbered " + std::to_string(head_.sequence) + " where " +
                         std::to_string(expected) + " was due");
  }
  if (!duplicate_) last_sequence_ = head_.sequence;
  if (Error error = sink_.onFrameHead(head_)) return error;
  if (head_.kind == FrameKind::kHeartbeat || head_.kind == FrameKind::kAck) return Step::kGoOn;
  if (head_.kind == FrameKind::kGoodbye) {
    state_ = State::kEnded;
    return Step::kGoOn;
  }
  sizes_.clear();
  unread_.clear();
  placed_.clear();
  places_.clear();
  sizes_sum_ = 0;
  unread_sum_ = 0;
  state_ = State::kTable;
  return Step::kGoOn;
}

Result<FrameReader::Step> FrameReader::readTable() {
  while (sizes_.size() < head_.buffer_count) {
    if (available() < kTableEntry) return Step::kNeedMore;
    const auto entry = loadLittle<std::uint64_t>(receive_.get() + begin_);
    begin_ += kTableEntry;
    const std::uint64_t size = entry & kBufferLengthMask;
    const std::uint64_t place = entry & ~kBufferLengthMask;
    if (place != 0 && place != kBufferInArena && place != kBufferExported)
      return protocolError("a buffer in a place unknown here");
    if (size > head_.buffer_bytes - sizes_sum_)
      return protocolError("buffers longer than their frame says");
    sizes_sum_ += size;
    if (place != 0) {
      placed_.push_back({static_cast<std::uint32_t>(sizes_.size()), place == kBufferExported});
    }
    sizes_.push_back(size);
    unread_.push_back(place != 0 ? 0 : size);
    unread_sum_ += unread_.back();
  }
  if (sizes_sum_ != head_.buffer_bytes)
    return protocolError("buffers shorter than their frame says");
  state_ = State::kPlaces;
  return Step::kGoOn;
}

Result<FrameReader::Step> FrameReader::readPlaces() {
  while (places_.size() < placed_.size()) {
    if (available() < ArenaDescriptor::kBytes) return Step::kNeedMore;
    places_.push_back(ArenaDescriptor::decode(receive_.get() + begin_));
    begin_ += ArenaDescriptor::kBytes;
    if (places_.back().reserved != 0) {
      return protocolError("a place in shared memory of a form unknown here");
    }
  }
  expectHeader();
  return Step::kGoOn;
}

void FrameReader::expectHeader() {
  state_ = State::kHeader;
  header_filled_ = 0;
  if (head_.header_bytes > kReceiveBytes) {
    if (header_capacity_ < head_.header_bytes) {
      header_store_ = std::make_unique_for_overwrite<std::byte[]>(head_.header_bytes);
      header_capacity_ = head_.header_bytes;
    }
    header_filled_ = std::min<std::size_t>(available(), head_.header_bytes);
    std::memcpy(header_store_.get(), receive_.get() + begin_, header_filled_);
    begin_ += header_filled_;
  }
}

Result<FrameReader::Step> FrameReader::readHeader() {
  if (head_.header_bytes > kReceiveBytes) {
    if (header_filled_ < head_.header_bytes) return Step::kNeedMore;
    header_ = {header_store_.get(), head_.header_bytes};
  } else {
    if (available() < head_.header_bytes) return Step::kNeedMore;
    header_ = {receive_.get() + begin_, head_.header_bytes};
    begin_ += head_.header_bytes;
  }
  return announce();
}

Error FrameReader::findPlaced() {
  buffers_.clear();
  buffers_.resize(sizes_.size());
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    const std::uint32_t index = placed_[i].buffer;
    Result<OwnedBuffer> buffer = placed_[i].exported
                                     ? sink_.exportedBuffer(places_[i], sizes_[index])
                                     : sink_.arenaBuffer(places_[i], sizes_[index]);
    if (!buffer.ok()) return buffer.error();
    buffers_[index] = std::move(buffer).value();
  }
  return Error::ok();
}

Result<FrameReader::Step> FrameReader::announce() {
  if (head_.kind != FrameKind::kData) {
    if (Error error = sink_.onArenaFrame(head_.kind, header_)) return error;
    state_ = State::kHead;
    return Step::kGoOn;
  }
  left_ = unread_sum_;
  discarded_ = duplicate_;
  if (duplicate_) return passBuffers();
  if (Error error = findPlaced()) return error;
  switch (sink_.onFrameHeader(header_, sizes_, buffers_)) {
    case Disposition::kRefuse:
      return protocolError("a message that is not this application's");
    case Disposition::kDiscard:
      buffers_.clear();
      discarded_ = true;
      return passBuffers();
    case Disposition::kAccept:
      break;
  }
  if (buffers_.size() != sizes_.size()) {
    return protocolError("the receiver supplied " + std::to_string(buffers_.size()) +
                         " buffers for " + std::to_string(sizes_.size()));
  }
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (buffers_[i].size < sizes_[i] || (buffers_[i].data == nullptr && sizes_[i] != 0)) {
      return protocolError("the receiver supplied too small a buffer");
    }
  }
  if (Error error = cutForBulk()) return error;
  buffer_index_ = 0;
  buffer_filled_ = 0;
  skipFullBuffers();
  state_ = State::kBuffers;
  return Step::kGoOn;
}

Result<FrameReader::Step> FrameReader::passBuffers() {
  if (Error error = cutForBulk()) return error;
  state_ = State::kDiscard;
  return Step::kGoOn;
}

// What comes over the bulk connection is not to be read here.
Error FrameReader::cutForBulk() {
  if (!split()) return Error::ok();
  std::uint64_t share = bulkShare(left_);
  if (share == 0) return protocolError("a split message with nothing to split");
  left_ -= share;
  std::vector<iovec> into;
  if (discarded_) {
    into.push_back({nullptr, static_cast<std::size_t>(share)});
    return sink_.readFromBulk(into);
  }
  for (std::size_t i = unread_.size(); share > 0; --i) {
    std::uint64_t& here = unread_[i - 1];
    const std::uint64_t part = std::min(here, share);
    here -= part;
    share -= part;
    if (part > 0) into.push_back({buffers_[i - 1].data + here, static_cast<std::size_t>(part)});
  }
  std::reverse(into.begin(), into.end());
  return sink_.readFromBulk(into);
}

Result<FrameReader::Step> FrameReader::readBuffers() {
  while (left_ > 0 && available() > 0) {
    const std::size_t some = static_cast<std::size_t>(
        std::min<std::uint64_t>(available(), unread_[buffer_index_] - buffer_filled_));
    std::memcpy(buffers_[buffer_index_].data + buffer_filled_, receive_.get() + begin_, some);
    begin_ += some;
    fillBuffers(some);
  }
  if (left_ == 0) return whole();
  keepHeader();
  return Step::kNeedMore;
}

// All that comes over this link.
Result<FrameReader::Step> FrameReader::whole() {
  if (split() && !sink_.bulkArrived()) {
    state_ = State::kBulk;
    keepHeader();
    return Step::kNeedMore;
  }
  return finish();
}

Result<FrameReader::Step> FrameReader::discard() {
  const std::size_t some = static_cast<std::size_t>(std::min<std::uint64_t>(available(), left_));
  begin_ += some;
  left_ -= some;
  if (left_ > 0) return Step::kNeedMore;
  return whole();
}

FrameReader::Step FrameReader::finish() {
  state_ = State::kHead;
  if (discarded_) {
    if (!duplicate_) sink_.onFrameTaken(head_);
    return Step::kGoOn;
  }
  std::vector<OwnedBuffer> buffers;
  buffers.swap(buffers_);
  sink_.onFrameTaken(head_);
  sink_.onFrame(header_, std::move(buffers));
  if (header_capacity_ > kKeepHeaderStore) {
    header_store_.reset();
    header_capacity_ = 0;
  }
  return Step::kGoOn;
}

void FrameReader::keepHeader() {
  if (header_.data() == header_store_.get()) return;
  if (header_capacity_ < header_.size()) {
    header_store_ = std::make_unique_for_overwrite<std::byte[]>(header_.size());
    header_capacity_ = header_.size();
  }
  if (!header_.empty()) std::memcpy(header_store_.get(), header_.data(), header_.size());
  header_ = {header_store_.get(), header_.size()};
}

void FrameReader::fillBuffers(std::size_t count) {
  left_ -= count;
  while (count > 0) {
    const std::uint64_t room = unread_[buffer_index_] - buffer_filled_;
    if (count < room) {
      buffer_filled_ += count;
      return;
    }
    count -= static_cast<std::size_t>(room);
    ++buffer_index_;
    buffer_filled_ = 0;
    skipFullBuffers();
  }
}

void FrameReader::skipFullBuffers() {
  while (buffer_index_ < unread_.size() && unread_[buffer_index_] == 0)
    ++buffer_index_;
}

}  // namespace weft::transport
