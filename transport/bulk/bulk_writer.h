// BulkWriter: the halves of large messages that are to be written to a bulk connection, in the
// order of their frames. It holds their owners until they are written.
//
// Threads: writeSome(): the bulk thread; stop(): the endpoint's loop thread; the rest: any.
// Ownership: it borrows the stream and the count. Failure: writeSome() returns it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/base/buffer.h"
#include "transport/bulk/bulk_turn.h"
#include "transport/io/stream.h"

namespace weft::transport {

class BulkWriter {
 public:
  // `sent` counts bytes.
  BulkWriter(Stream& stream, std::atomic<std::uint64_t>& sent) : stream_(stream), sent_(sent) {}

  // Queues a half, as BulkConnection::push(). Nothing changes if it throws.
  void push(std::vector<OwnedBuffer> half, std::shared_ptr<const Filling> filling,
            std::uint64_t before);
  // writeSome() is due. False: it was due before, and has not begun.
  bool noteDue();
  // Nothing waits to be written.
  bool written() const noexcept { return unwritten_.load() == 0; }
  // When this returns nobody writes from what push() gave.
  void stop();

  // Writes what is there. The result: bulk_turn.h; 0: nothing is left, or the rest is not there
  // yet.
  int writeSome();

 private:
  // The half that is not whole yet.
  struct Unfilled {
    std::shared_ptr<const Filling> filling;  // null: there is none
    std::uint64_t before = 0;                // of the message's bytes, not in this half
    std::uint64_t begin = 0;                 // of the half, in all bytes that were ever pushed
  };

  void takePushed();
  std::uint64_t ready();
  IoResult writeOnce();

  Stream& stream_;
  std::atomic<std::uint64_t>& sent_;
  std::atomic<std::uint64_t> unwritten_{0};  // bytes of pushed_ and out_

  std::mutex push_mutex_;            // a leaf; guards the four below
  std::vector<OwnedBuffer> pushed_;  // not yet in out_
  Unfilled pushed_unfilled_;
  std::uint64_t bytes_pushed_ = 0;
  bool due_ = false;

  // Held by the bulk thread while it writes, which never blocks, so that stop() can wait for it.
  std::mutex write_mutex_;  // guards what follows
  std::deque<OwnedBuffer> out_;
  std::size_t out_offset_ = 0;  // of the first one, written
  Unfilled unfilled_;
  std::uint64_t bytes_written_ = 0;
  bool stopped_ = false;
};

}  // namespace weft::transport
