// OutFrame: one frame on its way out. It owns the head, the table and the message, and knows how
// much of it has been written. Threads: one at a time. Failure: message() returns it.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/arena/arena_sender.h"
#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/frame/frame.h"
#include "transport/options.h"

namespace weft::transport {

class OutFrame {
 public:
  OutFrame() = default;  // empty: nothing to write
  // An Error when the message exceeds `limits` (those are checked at both ends) or is malformed.
  // The buffers that `placement` names are not written: their bytes are in the arena.
  static Result<OutFrame> message(Message message, const Limits& limits,
                                  ArenaPlacement placement = {});
  static OutFrame control(FrameKind kind);
  static OutFrame arenaOffer(std::shared_ptr<SharedArena> arena);

  // Numbers the frame; call once, before gather(). From then on its blocks are the receiver's.
  void seal(std::uint64_t sequence, std::uint64_t ack, std::uint16_t flags = 0) noexcept;
  // Takes the second half of the bytes that the frame carries out of it, for the bulk connection.
  // Call it before seal(), which then gets kSplit. Both halves hold the buffers' owners.
  std::vector<OwnedBuffer> split();
  // Counts the frame as unwritten again: the whole frame will go over another stream.
  void rewind() noexcept;
  // Buffers that `what` names are written with the frame instead, because the stream's other end
  // cannot see them where they are. Only while nothing is written. False: there are none. Nothing
  // changes if it throws.
  enum class Inline : std::uint8_t { kExported, kAll };
  bool bringInline(Inline what);

  FrameKind kind() const noexcept { return head_.kind; }
  std::span<const std::byte> header() const noexcept { return message_.header; }
  std::uint64_t sequence() const noexcept { return head_.sequence; }
  // Whether the frame keeps buffers of the application alive.
  bool ownsBuffers() const noexcept { return !message_.buffers.empty(); }
  bool wantedBack() const noexcept { return message_.wanted_back; }
  // Where the second half of split() begins in the bytes of the buffers.
  std::uint64_t bulkBegin() const noexcept { return carried() - bulk_bytes_; }
  // Null when all bytes are there.
  const std::shared_ptr<Filling>& filling() const noexcept { return message_.filling; }
  // Waits for more bytes; gather() includes them from then on.
  void awaitBytes();
  // What is only needed until the frame is written.
  std::shared_ptr<void>& untilWritten() noexcept { return message_.until_written; }
  std::uint64_t size() const noexcept { return size_; }
  // Bytes of buffers that are not in shared memory.
  std::uint64_t carried() const noexcept {
    return size_ - FrameHead::kBytes - table_bytes_ - message_.header.size();
  }
  // The bytes of buffers that go over the bulk connection.
  std::uint64_t bulkBytes() const noexcept { return bulk_bytes_; }
  // Bytes of the frame that are still to be written.
  std::uint64_t left() const noexcept { return size_ - bulk_bytes_ - written_; }
  // The descriptors to send with the first byte; empty: none, or sent already.
  std::span<const int> fdsToSend() const noexcept {
    if (written_ > 0) return {};
    if (offered_) return {&offered_fd_, 1};
    return placement_.fds();
  }

  // Appends what is unwritten, and there, to `out`; returns the entries used. The entries point
  // into this object: it must not move until they were used.
  std::size_t gather(std::span<iovec> out) const noexcept;
  // `count` (at most left()) bytes were written.
  void advance(std::uint64_t count) noexcept;

 private:
  static constexpr std::size_t kInlineTable =
      96;  // bytes: four buffers in the arena, or twelve not

  // Bytes that are there and unwritten.
  std::uint64_t ready() const noexcept;
  void noteFilled() noexcept;
  void putTable(std::vector<std::byte> table);
  std::span<const std::byte> part(std::size_t index) const noexcept;

  FrameHead head_;
  // Head and a short table together: one iovec entry, no allocation.
  std::array<std::byte, FrameHead::kBytes + kInlineTable> front_{};
  std::size_t table_bytes_ = 0;        // of lengths and descriptors
  std::vector<std::byte> long_table_;  // when they exceed kInlineTable
  Message message_;
  ArenaPlacement placement_;
  std::shared_ptr<SharedArena> offered_;
  int offered_fd_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t bulk_bytes_ = 0;  // the last ones
  std::uint64_t written_ = 0;
  std::uint64_t filled_ = Filling::kAll;  // bytes of the buffers that are there
  // The first unwritten byte. Parts: 0 head and short table, 1 long table, 2 header, 3… buffers.
  std::size_t part_ = 0;
  std::uint64_t part_written_ = 0;
};

}  // namespace weft::transport
