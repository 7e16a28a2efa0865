#include "transport/session/session_numbers.h"

#include <array>
#include <chrono>
#include <cstring>

#include "transport/base/secure_random.h"

namespace weft::transport {

std::uint64_t SessionNumbers::of(std::int32_t rank) {
  std::uint64_t& own = own_[rank];
  while (own == 0) {
    std::array<std::uint8_t, sizeof(own)> random{};
    if (Error error = fillRandom(random)) {
      // Not a secret: it only must differ from other sessions of the same two processes.
      own = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    } else {
      std::memcpy(&own, random.data(), sizeof(own));
    }
  }
  return own;
}

void SessionNumbers::forget(std::int32_t rank, std::uint64_t own) {
  const auto found = own_.find(rank);
  if (found != own_.end() && found->second == own) own_.erase(found);
}

}  // namespace weft::transport
