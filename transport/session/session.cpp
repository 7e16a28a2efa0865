#include "transport/session/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "transport/base/check.h"
#include "transport/base/os/secure_random.h"

namespace weft::transport {

Session::Match Session::match(const SessionClaim& theirs) const noexcept {
  if (theirs.peer != 0 && theirs.peer != own_) return Match::kUnknown;
  if (peer_ != 0 && theirs.own != peer_) return Match::kAnother;
  return Match::kSame;
}

void Session::beginLink(const SessionClaim& theirs) {
  peer_ = theirs.own;
  // One side may have missed a connection that broke while it was made.
  links_ = std::max(links_ + 1, theirs.link);
  deadline_ = kNever;
}

void Session::took(std::uint64_t sequence, bool asked) {
  WEFT_CHECK(sequence == received() + 1, "frames are taken one after the other");
  received_.store(sequence, std::memory_order_relaxed);
  if (asked) asked_ = sequence;
}

bool Session::ackOverdue() noexcept { return std::exchange(last_tick_, received()) > ackSent(); }

std::uint64_t SessionNumbers::of(std::int32_t rank) {
  std::uint64_t& own = own_[rank];
  while (own == 0) {
    std::array<std::uint8_t, sizeof(own)> random{};
    // No secret: it must differ from the numbers of these two workers' other sessions only.
    if (fillRandom(random)) {
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
