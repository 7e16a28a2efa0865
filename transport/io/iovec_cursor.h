// IovecCursor: the entries of one read or write, and how far they are done.
//
// Threads: one at a time. Ownership: it borrows the entries, and does not change them. What is left
// of an entry without a place has none.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/base/arrivals.h"
#include "transport/io/stream.h"

namespace weft::transport {

class IovecCursor {
 public:
  // For the array that first() fills: so many go into one read or write.
  static constexpr std::size_t kMaxEntries = 64;

  IovecCursor() = default;
  explicit IovecCursor(std::span<const iovec> entries)
      : entries_(entries), left_(bytesOf(entries)) {}

  std::uint64_t left() const noexcept { return left_; }
  // The next `bytes` are done; at most left(). `arrivals`, unless it is null, is told of them.
  void skip(std::size_t bytes, Arrivals* arrivals = nullptr);
  // Copies as many of `bytes` as there is room for, and skips that room. Returns how many.
  std::size_t fillFrom(std::span<const std::byte> bytes);
  // The rest of the first entry that is not done. left() is not 0.
  iovec next() const;
  // Where the next `bytes` are. Returns how many entries of `out` are used.
  std::size_t first(std::size_t bytes, std::span<iovec> out) const;

 private:
  std::span<const iovec> entries_;
  std::uint64_t left_ = 0;
  std::size_t offset_ = 0;  // in the first of them
};

}  // namespace weft::transport
