#include "transport/connect/waiting_room.h"

#include <algorithm>
#include <map>

namespace weft::transport {

WaitingRoom::WaitingRoom(std::size_t limit, std::size_t share)
    : limit_(std::max<std::size_t>(limit, 1)), share_(std::max<std::size_t>(share, 1)) {}

std::optional<std::uint64_t> WaitingRoom::inTheWayOf(std::uint64_t source) const {
  if (countOf(source) >= share_) return oldestOf(source);
  if (guests_.size() >= limit_) return oldestOf(largestSource());
  return std::nullopt;
}

void WaitingRoom::enter(std::uint64_t id, std::uint64_t source) { guests_.push_back({id, source}); }

bool WaitingRoom::leave(std::uint64_t id) {
  return std::erase_if(guests_, [id](const Guest& guest) { return guest.id == id; }) > 0;
}

bool WaitingRoom::has(std::uint64_t id) const {
  return std::any_of(guests_.begin(), guests_.end(),
                     [id](const Guest& guest) { return guest.id == id; });
}

std::size_t WaitingRoom::countOf(std::uint64_t source) const {
  return static_cast<std::size_t>(
      std::count_if(guests_.begin(), guests_.end(),
                    [source](const Guest& guest) { return guest.source == source; }));
}

std::uint64_t WaitingRoom::oldestOf(std::uint64_t source) const {
  return std::find_if(guests_.begin(), guests_.end(),
                      [source](const Guest& guest) { return guest.source == source; })
      ->id;
}

std::uint64_t WaitingRoom::largestSource() const {
  std::map<std::uint64_t, std::size_t> counts;
  for (const Guest& guest : guests_)
    ++counts[guest.source];
  // If sources have equally many, the source of the oldest guest.
  const auto largest = std::max_element(
      guests_.begin(), guests_.end(),
      [&](const Guest& a, const Guest& b) { return counts[a.source] < counts[b.source]; });
  return largest->source;
}

}  // namespace weft::transport
