// What each side claims of the session when a connection is made: which session it is, and which
// frames it has received. Part of the handshake's proof, so nobody else can claim it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::transport {

struct SessionClaim {
  static constexpr std::size_t kBytes = 32;

  std::uint64_t own = 0;       // this side's number of the session, drawn at random; never 0
  std::uint64_t peer = 0;      // the other side's; 0: unknown, there was no link yet
  std::uint64_t received = 0;  // the last data frame that this side has whole
  std::uint32_t link = 0;      // which connection of the session this one is to be; from 1
  std::uint32_t bulk =
      0;  // 1: not that connection itself, but the bulk connection of the one that stands

  bool operator==(const SessionClaim&) const = default;
};

}  // namespace weft::transport
