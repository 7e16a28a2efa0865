// FrameReader: turns the bytes of one link, however they are cut, into messages.
//
// A total parser: every byte string yields frames or a named error. prepare() says where the next
// bytes should go, and commit() how many came. Small frames are parsed out of one receive buffer,
// so that several of them cost one recv. The bytes of large buffers go straight into memory that
// the MessageHandler supplied; the receive buffer comes after it for what follows. Lengths are
// checked against Limits before memory is taken.
//
// Threads: one at a time. Ownership: borrows its handlers. Failure: the first Error is final.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/frame/buffer_table.h"
#include "transport/frame/frame.h"
#include "transport/frame/frame_handlers.h"
#include "transport/frame/message_body.h"

namespace weft::transport {

class FrameReader {
 public:
  // `received`: the number of the last data frame that earlier links brought. Frames up to it are
  // skipped.
  FrameReader(const Limits& limits, FrameHandlers handlers, std::uint64_t received = 0);

  // Fills `out` with where to read next and returns how many entries (at least 1, all
  // nonempty). Entries stay valid until commit().
  std::size_t prepare(std::span<iovec> out);
  // `count` bytes were put into the entries, in order.
  Error commit(std::size_t count);

  // Whether the rest of a frame comes over the bulk connection. Read nothing until it has come.
  bool waiting() const noexcept { return state_ == State::kBulk; }
  // Goes on if it has come.
  Error resume() { return waiting() ? parse() : Error::ok(); }

  // Whether a goodbye has come; what follows it is ignored.
  bool ended() const noexcept { return state_ == State::kEnded; }
  // How many bytes of the current message are missing; it cannot be used before they come.
  std::uint64_t bytesToCome() const noexcept { return state_ == State::kBody ? body_.left() : 0; }

 private:
  enum class State : std::uint8_t {
    kHead,
    kTable,
    kHeader,
    kBody,
    kBulk,  // only the half that comes over the bulk connection is missing
    kEnded
  };
  enum class Step : std::uint8_t { kGoOn, kNeedMore };

  Error parse();
  Result<Step> step();
  Result<Step> readHead();
  Result<Step> readTable();
  Result<Step> readHeader();
  Result<Step> announce();
  Result<Step> readBody();
  Result<Step> awaitBulk();
  Result<Step> finish();
  Error findPlaced(std::vector<OwnedBuffer>& buffers);
  Error checkSupplied(const std::vector<OwnedBuffer>& buffers) const;
  Error askBulk();

  bool longHeader() const noexcept { return head_.header_bytes > kReceiveBytes; }
  bool split() const noexcept { return (head_.flags & FrameHead::kSplit) != 0; }
  bool fillsBuffers() const noexcept { return state_ == State::kBody && !body_.discards(); }
  std::span<const std::byte> input() const noexcept {
    return {receive_.get() + begin_, end_ - begin_};
  }
  void leave(std::span<const std::byte> rest) noexcept { begin_ = end_ - rest.size(); }
  void keepHeader();  // copies it out of the receive buffer, which is about to be reused

  static constexpr std::size_t kReceiveBytes = std::size_t{64} << 10;

  const Limits& limits_;
  const FrameHandlers handlers_;
  State state_ = State::kHead;

  std::unique_ptr<std::byte[]> receive_;
  std::size_t begin_ = 0;  // unparsed bytes are receive_[begin_, end_)
  std::size_t end_ = 0;

  FrameHead head_;
  std::uint64_t last_sequence_;
  bool duplicate_ = false;  // the current frame came before
  BufferTable table_;
  std::span<const std::byte> header_;  // in receive_ or in kept_header_
  // A header that is too long for receive_, or must outlast it. Not cleared: one of which only the
  // length has come takes addresses, and no memory.
  std::unique_ptr<std::byte[]> kept_header_;
  std::size_t header_filled_ = 0;  // bytes of one that is too long
  MessageBody body_;
};

}  // namespace weft::transport
