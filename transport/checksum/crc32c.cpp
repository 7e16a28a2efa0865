#include "transport/checksum/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

namespace weft::transport {

std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // ISA-L's lengths are ints
  std::uint32_t state = ~crc;
  while (!bytes.empty()) {
    const auto some = bytes.first(std::min(bytes.size(), kMost));
    auto* start = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(some.data()));
    state = crc32_iscsi(start, static_cast<int>(some.size()), state);
    bytes = bytes.subspan(some.size());
  }
  return ~state;
}

std::uint32_t crc32cAndCopy(std::uint32_t crc, std::byte* to,
                            std::span<const std::byte> bytes) noexcept {
  constexpr std::size_t kPiece = 4096;  // is in the first cache when its checksum is taken
  while (!bytes.empty()) {
    const auto some = bytes.first(std::min(bytes.size(), kPiece));
    std::memcpy(to, some.data(), some.size());
    crc = crc32c(crc, {to, some.size()});
    to += some.size();
    bytes = bytes.subspan(some.size());
  }
  return crc;
}

}  // namespace weft::transport
