#include "transport/session/session.h"

#include <algorithm>
#include <utility>

#include "transport/base/check.h"

namespace weft::transport {

const char* toString(SessionState state) noexcept {
  switch (state) {
    case SessionState::kNew:
      return "new";
    case SessionState::kLinked:
      return "linked";
    case SessionState::kBroken:
      return "broken";
    case SessionState::kOver:
      return "over";
  }
  return "?";
}

void Session::moveTo(SessionState state) {
  WEFT_CHECK(mayFollow(state_, state), "a session's state follows its table");
  state_ = state;
}

Session::Match Session::match(const SessionClaim& theirs) const noexcept {
  if (theirs.peer != 0 && theirs.peer != own_) return Match::kUnknown;
  if (peer_ != 0 && theirs.own != peer_) return Match::kAnother;
  return Match::kSame;
}

void Session::link(const SessionClaim& theirs) {
  moveTo(SessionState::kLinked);
  peer_ = theirs.own;
  // One side may have missed a connection that broke while it was made.
  links_ = std::max(links_ + 1, theirs.link);
}

void Session::breakOff(Time deadline) {
  moveTo(SessionState::kBroken);
  deadline_ = deadline;
}

void Session::end() {
  if (state_ != SessionState::kOver) moveTo(SessionState::kOver);
}

void Session::took(std::uint64_t sequence, bool asked) {
  WEFT_CHECK(sequence == received_ + 1, "frames are taken one after the other");
  received_ = sequence;
  if (asked) asked_ = sequence;
}

bool Session::ackOverdue(std::uint64_t last_ack_sent) noexcept {
  return std::exchange(last_tick_, received_) > last_ack_sent;
}

}  // namespace weft::transport
