#include "transport/frame/out_frame.h"

#include <algorithm>
#include <string>
#include <utility>

#include "transport/base/bytes.h"
#include "transport/base/check.h"

namespace weft::transport {
namespace {

Error tooLarge(const char* what, std::uint64_t size, std::uint64_t limit, const char* advice = "") {
  return {ErrorCode::kLimitExceeded,
          resourceExhausted(std::string("a message has ") + std::to_string(size) + " " + what +
                            ", the limit here is " + std::to_string(limit) + advice)};
}

}  // namespace

Result<OutFrame> OutFrame::message(Message message, const Limits& limits,
                                   ArenaPlacement placement) {
  OutFrame frame;
  const std::size_t count = message.buffers.size();
  if (message.header.size() > limits.max_header_bytes) {
    return tooLarge("header bytes", message.header.size(), limits.max_header_bytes);
  }
  if (count > limits.max_buffers) return tooLarge("buffers", count, limits.max_buffers);

  std::byte* table = frame.front_.data() + FrameHead::kBytes;
  frame.table_bytes_ = count * 8 + placement.entries().size() * ArenaDescriptor::kBytes;
  if (frame.table_bytes_ > kInlineTable) {
    frame.long_table_.resize(frame.table_bytes_);
    table = frame.long_table_.data();
  }
  std::uint64_t total = message.header.size();
  for (std::size_t i = 0; i < count; ++i) {
    const OwnedBuffer& buffer = message.buffers[i];
    if (buffer.size > 0 && buffer.data == nullptr) {
      return invalidArgument("a buffer of a message has a size but no bytes");
    }
    if (buffer.size > limits.max_message_bytes || total > limits.max_message_bytes - buffer.size) {
      return tooLarge("bytes or more", total + buffer.size, limits.max_message_bytes,
                      " (max_message_bytes); send less at once, or raise it here");
    }
    total += buffer.size;
    storeLittle<std::uint64_t>(table + i * 8, buffer.size);
  }
  std::uint64_t in_arena = 0;
  std::byte* descriptor = table + count * 8;
  for (const ArenaPlacement::Entry& entry : placement.entries()) {
    OwnedBuffer& buffer = message.buffers[entry.buffer];
    in_arena += buffer.size;
    storeLittle<std::uint64_t>(table + std::size_t{entry.buffer} * 8,
                               buffer.size | (entry.exported ? kBufferExported : kBufferInArena));
    entry.where.encode(descriptor);
    descriptor += ArenaDescriptor::kBytes;
    buffer = {};  // copied, or kept by its block: its owner may go
  }
  if (placement.entries().size() == count) message.wanted_back = false;  // all are back
  frame.head_.kind = FrameKind::kData;
  frame.head_.header_bytes = static_cast<std::uint32_t>(message.header.size());
  frame.head_.buffer_count = static_cast<std::uint32_t>(count);
  frame.head_.buffer_bytes = total - message.header.size();
  frame.size_ = FrameHead::kBytes + frame.table_bytes_ + total - in_arena;
  frame.message_ = std::move(message);
  frame.noteFilled();
  frame.placement_ = std::move(placement);
  return frame;
}

OutFrame OutFrame::control(FrameKind kind) {
  OutFrame frame;
  frame.head_.kind = kind;
  frame.size_ = FrameHead::kBytes;
  return frame;
}

OutFrame OutFrame::arenaOffer(std::shared_ptr<SharedArena> arena) {
  OutFrame frame = control(FrameKind::kArenaOffer);
  frame.message_.header.resize(ArenaOffer::kBytes);
  arena->offer().encode(frame.message_.header.data());
  frame.head_.header_bytes = static_cast<std::uint32_t>(ArenaOffer::kBytes);
  frame.size_ += ArenaOffer::kBytes;
  frame.offered_fd_ = arena->fd();
  frame.offered_ = std::move(arena);
  return frame;
}

std::vector<OwnedBuffer> OutFrame::split() {
  bulk_bytes_ = bulkShare(carried());
  std::uint64_t skip = carried() - bulk_bytes_;
  std::vector<OwnedBuffer> half;
  for (const OwnedBuffer& buffer : message_.buffers) {
    const std::uint64_t here = std::min<std::uint64_t>(skip, buffer.size);
    skip -= here;
    if (here == buffer.size) continue;
    half.push_back(
        {buffer.data + here, static_cast<std::size_t>(buffer.size - here), buffer.owner});
  }
  return half;
}

void OutFrame::rewind() noexcept {
  if (std::exchange(bulk_bytes_, 0) > 0) {
    head_.flags &= static_cast<std::uint16_t>(~FrameHead::kSplit);
    encodeFrameHead(head_, front_.data());
  }
  written_ = 0;
  part_ = 0;
  part_written_ = 0;
}

bool OutFrame::bringInline(Inline what) {
  if (!placement_.namesMemory()) return false;
  const auto stays = [&](const ArenaPlacement::Entry& entry) {
    return what == Inline::kExported && !entry.exported;
  };
  const auto& entries = placement_.entries();
  if (std::all_of(entries.begin(), entries.end(), stays)) return false;
  WEFT_CHECK(written_ == 0, "a frame keeps its form while it is written");
  const std::byte* const old =
      long_table_.empty() ? front_.data() + FrameHead::kBytes : long_table_.data();
  const std::size_t count = message_.buffers.size();
  std::vector<std::byte> table(old, old + count * 8);
  std::vector<OwnedBuffer> buffers = message_.buffers;
  std::uint64_t brought = 0;
  for (const ArenaPlacement::Entry& entry : entries) {
    if (stays(entry)) {
      table.resize(table.size() + ArenaDescriptor::kBytes);
      entry.where.encode(table.data() + table.size() - ArenaDescriptor::kBytes);
      continue;
    }
    std::byte* const at = table.data() + std::size_t{entry.buffer} * 8;
    const std::uint64_t size = loadLittle<std::uint64_t>(at) & kBufferLengthMask;
    storeLittle<std::uint64_t>(at, size);
    buffers[entry.buffer] = placement_.bytes(entry, size);
    brought += size;
  }
  message_.buffers = std::move(buffers);
  size_ += brought;
  putTable(std::move(table));
  placement_.dropExported();
  if (what == Inline::kAll) placement_.takeBack();
  return true;
}

// In place of a longer one.
void OutFrame::putTable(std::vector<std::byte> table) {
  size_ -= table_bytes_ - table.size();
  table_bytes_ = table.size();
  if (table_bytes_ <= kInlineTable) {
    long_table_.clear();
    std::copy(table.begin(), table.end(), front_.begin() + FrameHead::kBytes);
  } else {
    long_table_ = std::move(table);
  }
}

void OutFrame::seal(std::uint64_t sequence, std::uint64_t ack, std::uint16_t flags) noexcept {
  head_.sequence = sequence;
  head_.ack = ack;
  head_.flags = flags;
  encodeFrameHead(head_, front_.data());
  placement_.handOver();
}

std::span<const std::byte> OutFrame::part(std::size_t index) const noexcept {
  switch (index) {
    case 0:
      return {front_.data(), FrameHead::kBytes + (long_table_.empty() ? table_bytes_ : 0)};
    case 1:
      return long_table_;
    case 2:
      return message_.header;
    default: {
      const OwnedBuffer& buffer = message_.buffers[index - 3];
      return {buffer.data, buffer.size};
    }
  }
}

void OutFrame::awaitBytes() {
  if (message_.filling == nullptr) return;
  message_.filling->waitBeyond(filled_);
  noteFilled();
}

void OutFrame::noteFilled() noexcept {
  if (message_.filling == nullptr) return;
  filled_ = message_.filling->filled();
  if (filled_ == Filling::kAll) message_.filling.reset();
}

std::uint64_t OutFrame::ready() const noexcept {
  if (filled_ == Filling::kAll) return left();
  return std::min(left(), size_ - carried() + filled_ - written_);
}

std::size_t OutFrame::gather(std::span<iovec> out) const noexcept {
  std::size_t used = 0;
  std::uint64_t skip = part_written_;
  std::uint64_t left = ready();
  for (std::size_t i = part_; left > 0 && used < out.size(); ++i) {
    const std::span<const std::byte> bytes = part(i);
    if (bytes.size() > skip) {
      const std::uint64_t size = std::min(left, bytes.size() - skip);
      out[used++] = {const_cast<std::byte*>(bytes.data()) + skip, static_cast<std::size_t>(size)};
      left -= size;
    }
    skip = 0;
  }
  return used;
}

void OutFrame::advance(std::uint64_t count) noexcept {
  written_ += count;
  while (count > 0) {
    const std::uint64_t room = part(part_).size() - part_written_;
    if (count < room) {
      part_written_ += count;
      return;
    }
    count -= room;
    ++part_;
    part_written_ = 0;
  }
}

}  // namespace weft::transport
