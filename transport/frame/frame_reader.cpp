#include "transport/frame/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/base/check.h"

namespace weft::transport {

FrameReader::FrameReader(const Limits& limits, FrameHandlers handlers, std::uint64_t received)
    : limits_(limits),
      handlers_(handlers),
      receive_(std::make_unique_for_overwrite<std::byte[]>(kReceiveBytes)),
      last_sequence_(received) {}

std::size_t FrameReader::prepare(std::span<iovec> out) {
  WEFT_CHECK(out.size() >= 2, "room for a target and for what follows it");
  std::size_t count = 0;
  if (fillsBuffers()) {
    count = body_.targets(out.first(out.size() - 1));
    // If buffers are left over, the bytes that follow are theirs, not the next frame's.
    if (bytesOf(out.first(count)) < body_.left()) return count;
  }
  out[count++] = {receive_.get() + end_, kReceiveBytes - end_};
  return count;
}

Error FrameReader::commit(std::size_t count) {
  if (fillsBuffers()) {
    const std::size_t taken = std::min<std::uint64_t>(count, body_.left());
    body_.advance(taken);
    count -= taken;
  }
  end_ += count;
  WEFT_CHECK(end_ <= kReceiveBytes, "no more bytes than there was room for");
  return parse();
}

// Parses as far as the bytes that are here go.
Error FrameReader::parse() {
  while (true) {
    Result<Step> result = step();
    if (!result.ok()) return result.error();
    if (result.value() == Step::kNeedMore) break;
  }
  if (begin_ > 0) {
    const std::size_t rest = end_ - begin_;
    std::memmove(receive_.get(), receive_.get() + begin_, rest);
    begin_ = 0;
    end_ = rest;
  }
  return Error::ok();
}

Result<FrameReader::Step> FrameReader::step() {
  switch (state_) {
    case State::kHead:
      return readHead();
    case State::kTable:
      return readTable();
    case State::kHeader:
      return readHeader();
    case State::kBody:
      return readBody();
    case State::kBulk:
      return awaitBulk();
    case State::kEnded:
      begin_ = end_;
      return Step::kNeedMore;
  }
  return Step::kNeedMore;
}

Result<FrameReader::Step> FrameReader::readHead() {
  if (input().size() < FrameHead::kBytes) return Step::kNeedMore;
  Result<FrameHead> head = decodeFrameHead(input().first<FrameHead::kBytes>(), limits_);
  if (!head.ok()) return head.error();
  begin_ += FrameHead::kBytes;
  head_ = head.value();

  const bool data = head_.kind == FrameKind::kData;
  const std::uint64_t expected = last_sequence_ + (data ? 1 : 0);
  duplicate_ = data && head_.sequence < expected;
  if (head_.sequence != expected && !duplicate_) {
    return protocolError("frame number " + std::to_string(head_.sequence) + " instead of " +
                         std::to_string(expected));
  }
  if (!duplicate_) last_sequence_ = head_.sequence;
  if (Error error = handlers_.messages.onFrameHead(head_)) return error;
  if (head_.kind == FrameKind::kHeartbeat || head_.kind == FrameKind::kAck) return Step::kGoOn;
  if (head_.kind == FrameKind::kGoodbye) {
    state_ = State::kEnded;
    return Step::kGoOn;
  }
  table_.begin(head_);
  state_ = State::kTable;
  return Step::kGoOn;
}

Result<FrameReader::Step> FrameReader::readTable() {
  std::span<const std::byte> rest = input();
  Result<bool> whole = table_.read(rest);
  if (!whole.ok()) return whole.error();
  leave(rest);
  if (!whole.value()) return Step::kNeedMore;
  state_ = State::kHeader;
  if (longHeader()) {
    kept_header_ = std::make_unique_for_overwrite<std::byte[]>(head_.header_bytes);
    header_filled_ = 0;
  }
  return Step::kGoOn;
}

Result<FrameReader::Step> FrameReader::readHeader() {
  if (longHeader()) {
    const auto some =
        input().first(std::min<std::size_t>(input().size(), head_.header_bytes - header_filled_));
    std::copy(some.begin(), some.end(), kept_header_.get() + header_filled_);
    header_filled_ += some.size();
    begin_ += some.size();
    if (header_filled_ < head_.header_bytes) return Step::kNeedMore;
    header_ = {kept_header_.get(), head_.header_bytes};
  } else {
    if (input().size() < head_.header_bytes) return Step::kNeedMore;
    header_ = input().first(head_.header_bytes);
    begin_ += head_.header_bytes;
  }
  return announce();
}

Result<FrameReader::Step> FrameReader::announce() {
  if (head_.kind != FrameKind::kData) {
    if (handlers_.shared_memory == nullptr)
      return protocolError("a frame about shared memory, which is not used here");
    if (Error error = handlers_.shared_memory->onArenaFrame(head_.kind, header_)) return error;
    state_ = State::kHead;
    return Step::kGoOn;
  }
  Disposition wanted = Disposition::kDiscard;
  std::vector<OwnedBuffer> buffers;
  if (!duplicate_) {
    if (Error error = findPlaced(buffers)) return error;
    if (const Error too_large = checkSize(head_, limits_)) {
      if (Error error = handlers_.messages.onTooLarge(header_, too_large)) return error;
      buffers.clear();
    } else {
      Result<Disposition> answer = handlers_.messages.onHeader(header_, table_.sizes(), buffers);
      if (!answer.ok()) return answer.error();
      wanted = answer.value();
    }
  }
  if (wanted == Disposition::kRefuse)
    return protocolError("the application refused the header of a message");
  if (wanted == Disposition::kAccept) {
    if (Error error = checkSupplied(buffers)) return error;
    body_.begin(std::move(buffers), table_, handlers_.messages.arrivals());
  } else {
    body_.beginDiscard(table_.inlineBytes());
  }
  if (Error error = askBulk()) return error;
  state_ = State::kBody;
  return Step::kGoOn;
}

Error FrameReader::findPlaced(std::vector<OwnedBuffer>& buffers) {
  buffers.resize(table_.sizes().size());
  if (table_.placed().empty()) return Error::ok();
  SharedMemoryHandler* const memory = handlers_.shared_memory;
  if (memory == nullptr) return protocolError("a buffer in shared memory that was not offered");
  for (const BufferTable::Placed& placed : table_.placed()) {
    const std::uint64_t size = table_.sizes()[placed.buffer];
    Result<OwnedBuffer> buffer = placed.exported ? memory->exportedBuffer(placed.where, size)
                                                 : memory->arenaBuffer(placed.where, size);
    if (!buffer.ok()) return buffer.error();
    buffers[placed.buffer] = std::move(buffer).value();
  }
  return Error::ok();
}

Error FrameReader::checkSupplied(const std::vector<OwnedBuffer>& buffers) const {
  const std::vector<std::uint64_t>& sizes = table_.sizes();
  if (buffers.size() != sizes.size()) {
    return protocolError("the receiver supplied " + std::to_string(buffers.size()) +
                         " buffers for " + std::to_string(sizes.size()));
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (buffers[i].size < sizes[i] || (buffers[i].data == nullptr && sizes[i] != 0)) {
      return protocolError("the receiver supplied too small a buffer");
    }
  }
  return Error::ok();
}

Error FrameReader::askBulk() {
  if (!split()) return Error::ok();
  const std::vector<iovec> into = body_.splitForBulk();
  if (into.empty()) return protocolError("a split message that is too small to be split");
  if (handlers_.bulk == nullptr) return protocolError("a split message without a bulk connection");
  return handlers_.bulk->readFromBulk(into, body_.arrivals());
}

Result<FrameReader::Step> FrameReader::readBody() {
  std::span<const std::byte> rest = input();
  body_.copyFrom(rest);
  leave(rest);
  if (body_.left() == 0) return awaitBulk();
  if (!body_.discards()) keepHeader();
  return Step::kNeedMore;
}

Result<FrameReader::Step> FrameReader::awaitBulk() {
  if (split() && !handlers_.bulk->bulkArrived()) {
    state_ = State::kBulk;
    keepHeader();
    return Step::kNeedMore;
  }
  return finish();
}

Result<FrameReader::Step> FrameReader::finish() {
  const std::unique_ptr<std::byte[]> kept = std::move(kept_header_);  // header_ may be there
  state_ = State::kHead;
  if (duplicate_) return Step::kGoOn;
  std::vector<OwnedBuffer> buffers = body_.take();
  handlers_.messages.onDataFrame(head_);
  if (body_.discards()) return Step::kGoOn;
  if (Error error = handlers_.messages.onMessage(header_, std::move(buffers))) return error;
  return Step::kGoOn;
}

void FrameReader::keepHeader() {
  if (kept_header_ != nullptr) return;
  kept_header_ = std::make_unique_for_overwrite<std::byte[]>(header_.size());
  std::copy(header_.begin(), header_.end(), kept_header_.get());
  header_ = {kept_header_.get(), header_.size()};
}

}  // namespace weft::transport
