#include "transport/io/iovec_cursor.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace weft::transport {

void IovecCursor::skip(std::size_t bytes, Arrivals* arrivals) {
  while (arrivals != nullptr && bytes > 0) {
    const iovec place = next();
    const std::size_t some = std::min(bytes, place.iov_len);
    arrivals->onBytes(static_cast<const std::byte*>(place.iov_base), some);
    skip(some);
    bytes -= some;
  }
  left_ -= bytes;
  offset_ += bytes;
  while (!entries_.empty() && offset_ >= entries_.front().iov_len) {
    offset_ -= entries_.front().iov_len;
    entries_ = entries_.subspan(1);
  }
}

std::size_t IovecCursor::fillFrom(std::span<const std::byte> bytes) {
  std::array<iovec, kMaxEntries> parts;
  std::size_t copied = 0;
  while (copied < bytes.size() && left_ > 0) {
    const std::size_t used = first(bytes.size() - copied, parts);
    std::size_t here = 0;
    for (const iovec& part : std::span(parts).first(used)) {
      std::memcpy(part.iov_base, bytes.data() + copied + here, part.iov_len);
      here += part.iov_len;
    }
    copied += here;
    skip(here);
  }
  return copied;
}

iovec IovecCursor::next() const {
  iovec rest{};
  first(left_, std::span(&rest, 1));
  return rest;
}

std::size_t IovecCursor::first(std::size_t bytes, std::span<iovec> out) const {
  std::size_t used = 0;
  std::size_t offset = offset_;
  for (auto entry = entries_.begin(); entry != entries_.end() && used < out.size() && bytes > 0;
       ++entry) {
    const std::size_t some = std::min(bytes, entry->iov_len - offset);
    auto* const place = static_cast<std::byte*>(entry->iov_base);
    if (some > 0) out[used++] = {place == nullptr ? place : place + offset, some};
    bytes -= some;
    offset = 0;
  }
  return used;
}

}  // namespace weft::transport
