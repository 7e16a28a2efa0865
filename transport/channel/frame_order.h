// FrameOrder: gives the frames to one peer what they need on their way into the order of frames. A
// data frame's memory goes inline where the stream is TCP, its second half to the bulk connection
// if it is large; it gets its number. Each frame gets the ack that it carries, and whether it asks
// for one. This is the sending half of a Session's rules.
//
// Threads: the Outbox calls it with its lock held.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/bulk/bulk_connection.h"
#include "transport/frame/out_frame.h"
#include "transport/io/stream.h"
#include "transport/session/session.h"

namespace weft::transport {

class FrameOrder {
 public:
  // Without `replay` no frame is kept, so none asks for an ack.
  FrameOrder(Session& session, std::uint64_t max_queued_bytes, bool replay) noexcept;

  void attach(const Stream& stream) noexcept;
  // The stream is broken, and its bulk connection with it.
  void detach() noexcept { bulk_.reset(); }
  // Whether the other end of the last stream cannot map shared memory.
  bool inlineOnly() const noexcept { return inline_only_; }
  // As Outbox's.
  void setBulkConnection(std::shared_ptr<BulkConnection> bulk, std::uint64_t threshold) noexcept;

  // The frame is the next one: completes and seals it, so that its blocks are the receiver's.
  // Returns the bulk connection if the frame is split, to be woken without the lock. If it throws,
  // the frame has no number, and nobody else has a part of it.
  std::shared_ptr<BulkConnection> take(OutFrame& frame);
  // The number of the last data frame; 0: there was none.
  std::uint64_t last() const noexcept { return last_; }

 private:
  bool asksForAck(const OutFrame& frame) noexcept;

  Session& session_;
  const bool replay_;
  const std::uint64_t ask_bytes_;
  // Numbered since the last one that asked for an ack.
  std::uint64_t unasked_bytes_ = 0;
  std::uint32_t unasked_frames_ = 0;
  std::uint64_t last_ = 0;
  bool inline_only_ = false;
  std::shared_ptr<BulkConnection> bulk_;
  std::uint64_t bulk_threshold_ = 0;
};

}  // namespace weft::transport
