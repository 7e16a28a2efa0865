// MessageBody: the buffers of one message while their bytes come in, from the link and perhaps from
// its bulk connection. Knows which byte of which buffer comes next.
//
// Threads: one at a time. Ownership: holds the buffers from begin() to take().
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/base/arrivals.h"
#include "transport/base/buffer.h"
#include "transport/frame/buffer_table.h"
#include "transport/io/iovec_cursor.h"

namespace weft::transport {

class MessageBody {
 public:
  // Begins to read the buffers of `table` that are in its frame. `arrivals`, unless it is null, is
  // told of them.
  void begin(std::vector<OwnedBuffer> buffers, const BufferTable& table,
             std::shared_ptr<Arrivals> arrivals);
  // The bytes are read and dropped.
  void beginDiscard(std::uint64_t unread_bytes);

  // Takes the part that comes over the bulk connection out of what comes over the link, and returns
  // where it goes (one entry without a place when it is dropped). Empty: the part is nothing.
  std::vector<iovec> splitForBulk();

  // Bytes that have not come over the link.
  std::uint64_t left() const noexcept { return left_; }
  bool discards() const noexcept { return discards_; }
  // Where the next bytes go, in order; returns the entries used.
  std::size_t targets(std::span<iovec> out) const { return to_come_.first(to_come_.left(), out); }
  // So many bytes were put there.
  void advance(std::size_t count);
  // Takes bytes from the front of `input`, as many as it needs.
  void copyFrom(std::span<const std::byte>& input);
  std::vector<OwnedBuffer> take() noexcept {
    arrivals_.reset();
    return std::exchange(buffers_, {});
  }
  const std::shared_ptr<Arrivals>& arrivals() const noexcept { return arrivals_; }

 private:
  bool discards_ = false;
  std::vector<OwnedBuffer> buffers_;
  std::shared_ptr<Arrivals> arrivals_;
  std::vector<iovec> places_;  // of each buffer, what comes over the link
  IovecCursor to_come_;        // of them
  std::uint64_t left_ = 0;
};

}  // namespace weft::transport
