// FrameReader: turns the bytes of one link, however they are cut, into messages.
//
// It says where the next bytes should go (prepare) and is told how many came
// (commit). Small frames are parsed out of one receive buffer, so that several of them cost
// one recv; the bytes of large buffers go straight into memory that the sink supplied, with
// the receive buffer behind it for whatever follows.
//
// Nothing is taken on the peer's word: lengths are checked against the limits first, and the
// table of lengths grows only as its bytes arrive. Used by one thread at a time.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/arena/arena_layout.h"
#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/endpoint.h"
#include "transport/frame/frame.h"

namespace weft::transport {

// What a FrameReader finds. Called from commit().
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // A head, before anything else of its frame. An Error ends the link. Default: nothing.
  virtual Error onFrameHead(const FrameHead& /*head*/) { return Error::ok(); }
  // A data frame is whole: it was discarded, or onFrame() follows. Default: nothing.
  virtual void onFrameTaken(const FrameHead& /*head*/) {}
  // As EndpointHandler::onHeader.
  virtual Disposition onFrameHeader(std::span<const std::byte> header,
                                    std::span<const std::uint64_t> sizes,
                                    std::vector<OwnedBuffer>& buffers) = 0;
  virtual void onFrame(std::span<const std::byte> header, std::vector<OwnedBuffer> buffers) = 0;
  // A buffer that lies in the arena which the peer offered. An Error ends the link. Default: there
  // is none.
  virtual Result<OwnedBuffer> arenaBuffer(const ArenaDescriptor& block, std::uint64_t size);
  // A buffer in memory whose descriptor came with the frame: the `place.slot`th of them. kSystem:
  // it cannot be had here, and the frame should come again without it. Another error ends the link,
  // too. Default: there is none.
  virtual Result<OwnedBuffer> exportedBuffer(const ArenaDescriptor& place, std::uint64_t size);
  // Half of the frame's bytes come over the link's bulk connection, `into` these (one entry without
  // a place: to be read past), in memory that stays until the reader is gone or asked bulkArrived()
  // and heard yes. An Error ends the link. Default: there is no bulk connection.
  virtual Error readFromBulk(std::span<const iovec> into);
  // They are there. If not, FrameReader::resume() follows when they are.
  virtual bool bulkArrived() { return false; }
  // A frame about the arena; `body` is an encoded ArenaOffer or empty. An Error ends the link.
  // Default: nothing is known of arenas here.
  virtual Error onArenaFrame(FrameKind kind, std::span<const std::byte> body);
};

class FrameReader {
 public:
  // `received`: the last data frame that earlier links brought; the next one follows it. What came
  // already is read past, before anybody sees what is in it.
  FrameReader(const Limits& limits, FrameSink& sink, std::uint64_t received = 0);

  // Fills `out` with where to read next and returns how many entries (at least 1, all
  // nonempty). Entries stay valid until commit().
  std::size_t prepare(std::span<iovec> out);
  // `count` bytes were put into the entries, in order. An Error is final.
  Error commit(std::size_t count);

  // The rest of a frame comes over the bulk connection: nothing is to be read before resume() has
  // gone on.
  bool waiting() const noexcept { return state_ == State::kBulk; }
  // Looks whether it has come. An Error is final.
  Error resume();

  // After a goodbye: what follows is ignored.
  bool ended() const noexcept { return state_ == State::kEnded; }
  // A frame has begun and is not whole: the end of the stream here is a broken connection.
  bool insideFrame() const noexcept { return state_ != State::kHead || begin_ != end_; }
  // Bytes of the buffers in hand that have not come; nothing of the frame can be used before.
  std::uint64_t bytesToCome() const noexcept {
    return state_ == State::kBuffers || state_ == State::kDiscard ? left_ : 0;
  }

 private:
  enum class State : std::uint8_t {
    kHead,
    kTable,
    kPlaces,
    kHeader,
    kBuffers,
    kDiscard,
    kBulk,  // all is here but what comes over the bulk connection
    kEnded
  };
  enum class Step : std::uint8_t { kGoOn, kNeedMore };

  Error parse();
  Result<Step> step();
  Result<Step> readHead();
  Result<Step> readTable();
  Result<Step> readPlaces();
  void expectHeader();
  Result<Step> readHeader();
  Result<Step> announce();
  Error findPlaced();
  Result<Step> readBuffers();
  Result<Step> discard();
  Result<Step> passBuffers();
  Error cutForBulk();
  Result<Step> whole();
  Step finish();

  bool split() const noexcept { return (head_.flags & FrameHead::kSplit) != 0; }
  std::size_t available() const noexcept { return end_ - begin_; }
  void keepHeader();  // out of the receive buffer, which is about to be reused
  void fillBuffers(std::size_t count);
  void skipFullBuffers();

  static constexpr std::size_t kReceiveBytes = std::size_t{64} << 10;

  const Limits& limits_;
  FrameSink& sink_;
  State state_ = State::kHead;

  std::unique_ptr<std::byte[]> receive_;
  std::size_t begin_ = 0;  // unparsed bytes are receive_[begin_, end_)
  std::size_t end_ = 0;

  FrameHead head_;
  std::uint64_t last_sequence_;
  bool duplicate_ = false;  // the frame in hand came before
  bool discarded_ = false;  // nobody wants its buffers
  std::vector<std::uint64_t> sizes_;
  std::vector<std::uint64_t> unread_;  // as sizes_, but 0 for what lies elsewhere
  std::uint64_t sizes_sum_ = 0;
  struct Placed {
    std::uint32_t buffer = 0;
    bool exported = false;  // else in the arena
  };
  std::vector<Placed> placed_;  // the buffers that lie elsewhere
  std::vector<ArenaDescriptor> places_;
  std::span<const std::byte> header_;  // in receive_ or in header_store_
  std::unique_ptr<std::byte[]> header_store_;
  std::size_t header_capacity_ = 0;
  std::size_t header_filled_ = 0;  // bytes of a header too large for receive_
  std::vector<OwnedBuffer> buffers_;
  std::size_t buffer_index_ = 0;  // the buffer being filled
  std::uint64_t buffer_filled_ = 0;
  std::uint64_t unread_sum_ = 0;
  std::uint64_t left_ = 0;  // buffer bytes of this frame still to come
};

}  // namespace weft::transport
