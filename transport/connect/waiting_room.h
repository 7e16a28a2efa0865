// WaitingRoom: the connections in one stage of the handshake. If another one comes and there is no
// room, one must leave: the oldest one of the newcomer's own source if that source has used up its
// share, else the oldest one of the source that has most. So every newcomer gets in, and a source
// displaces others only while they have more than it has.
//
// Threads: the endpoint's loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::transport {

class WaitingRoom {
 public:
  // At most `limit` in all and `share` of one source; each at least 1.
  WaitingRoom(std::size_t limit, std::size_t share);

  // The connection that must leave before one of `source` can enter; nullopt: none.
  std::optional<std::uint64_t> inTheWayOf(std::uint64_t source) const;
  void enter(std::uint64_t id, std::uint64_t source);
  // Whether it was here.
  bool leave(std::uint64_t id);
  bool has(std::uint64_t id) const;
  void clear() { guests_.clear(); }

 private:
  struct Guest {
    std::uint64_t id;
    std::uint64_t source;
  };

  std::size_t countOf(std::uint64_t source) const;
  std::uint64_t oldestOf(std::uint64_t source) const;
  std::uint64_t largestSource() const;

  const std::size_t limit_;
  const std::size_t share_;
  std::vector<Guest> guests_;  // oldest first; so few that they are searched
};

}  // namespace weft::transport
