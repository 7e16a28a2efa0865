// SealedPieces: the pieces of a layered stream's output that are not sent whole, and how many of
// the writer's bytes are in each. A checksum or a tag makes a piece longer than what is in it, so a
// write counts the writer's bytes when the piece that they are in has been sent.
//
// Threads: the writing thread's.
#pragma once

#include <cerrno>
#include <cstddef>
#include <deque>

#include "transport/io/stream.h"

namespace weft::transport {

class SealedPieces {
 public:
  bool empty() const noexcept { return pieces_.empty(); }
  // Where the last one ends in the output. Not empty().
  std::size_t end() const noexcept { return pieces_.back().end; }
  // Behind the last one: ends at `end` of the output, and has `payload` of the writer's bytes.
  void add(std::size_t end, std::size_t payload) { pieces_.push_back({end, payload}); }

  // The output is sent up to `sent`. What the write is to return: the writer's bytes in the pieces
  // that are sent whole now; EAGAIN: there are none.
  IoResult takeSent(std::size_t sent) {
    std::size_t count = 0;
    while (!pieces_.empty() && pieces_.front().end <= sent) {
      count += pieces_.front().payload;
      pieces_.pop_front();
    }
    return {count, count > 0 ? 0 : EAGAIN, false};
  }

 private:
  struct Piece {
    std::size_t end;
    std::size_t payload;
  };
  std::deque<Piece> pieces_;
};

}  // namespace weft::transport
