// FrameReader: turns the bytes of one link, however they are cut, into messages.
//
// A total parser: every byte string yields frames or a named error. It says where the next bytes
// should go (prepare) and is told how many came (commit). Small frames are parsed out of one
// receive buffer, so that several of them cost one recv; the bytes of large buffers go straight
// into memory that the MessageHandler supplied, with the receive buffer behind it for whatever
// follows. Lengths are checked against Limits before memory is taken.
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
#include "transport/frame/header_store.h"
#include "transport/frame/message_body.h"

namespace weft::transport {

class FrameReader {
 public:
  // `received`: the last data frame that earlier links brought; the next one follows it. Frames
  // that came before are skipped unseen.
  FrameReader(const Limits& limits, FrameHandlers handlers, std::uint64_t received = 0);

  // Fills `out` with where to read next and returns how many entries (at least 1, all
  // nonempty). Entries stay valid until commit().
  std::size_t prepare(std::span<iovec> out);
  // `count` bytes were put into the entries, in order.
  Error commit(std::size_t count);

  // The rest of a frame comes over the bulk connection: nothing is read before resume() went on.
  bool waiting() const noexcept { return state_ == State::kBulk; }
  // Looks whether it has come.
  Error resume() { return waiting() ? parse() : Error::ok(); }

  // After a goodbye: what follows is ignored.
  bool ended() const noexcept { return state_ == State::kEnded; }
  // A frame has begun and is not whole: the end of the stream here is a broken connection.
  bool insideFrame() const noexcept { return state_ != State::kHead || begin_ != end_; }
  // Bytes of the current message that have not come; nothing of it can be used before.
  std::uint64_t bytesToCome() const noexcept { return state_ == State::kBody ? body_.left() : 0; }

 private:
  enum class State : std::uint8_t {
    kHead,
    kTable,
    kHeader,
    kBody,
    kBulk,  // all is here but what comes over the bulk connection
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
  void keepHeader();  // out of the receive buffer, which is about to be reused

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
  std::span<const std::byte> header_;  // in receive_ or in header_store_
  HeaderStore header_store_;
  std::size_t header_filled_ = 0;  // bytes of a header too large for receive_
  MessageBody body_;
};

}  // namespace weft::transport
