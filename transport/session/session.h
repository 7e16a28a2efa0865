// Session: the conversation of two processes across their connections. They have at most one; it
// begins with their first connection, outlives connections that break, and ends with its Peer.
//
// Each side numbers its data frames 1, 2, 3 … for as long as the session lasts, keeps what it wrote
// until the other has acknowledged it (ReplayBuffer), and on each new connection says which frame
// it received last (SessionClaim): the other continues after that one. So every frame arrives once
// and in order, however often the connection breaks.
//
// Acks are cumulative and ride on whatever frame goes the other way. One of their own is sent only
// when the sender asks for it, because its replay buffer fills (FrameHead::kAckNow), or when frames
// have waited for a whole tick.
//
// This class is the receiving half and the rules: no IO, no clock (time is an argument), no thread.
// The sending half is SendSequence and the Outbox.
//
// Threads: the endpoint's loop thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <unordered_map>

#include "transport/auth/hello.h"

namespace weft::transport {

class Session {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `own`: random, not 0; may be given later, but before claim().
  explicit Session(std::uint64_t own = 0) noexcept : own_(own) {}

  std::uint64_t own() const noexcept { return own_; }
  void setOwn(std::uint64_t own) noexcept { own_ = own; }

  // What this side claims on a connection to be made. Only while no link delivers: the claim is
  // final.
  SessionClaim claim() const noexcept { return {own_, peer_, received_, links_ + 1}; }

  // The same for a bulk connection of the link that stands.
  SessionClaim bulkClaim() const noexcept { return {own_, peer_, received_, links_, 1}; }
  // The link that stands or was the last to stand, counted from 1; 0: there was none.
  std::uint32_t link() const noexcept { return links_; }

  // What the other side's claim means.
  enum class Match : std::uint8_t {
    kSame,     // this session, or its beginning
    kAnother,  // the other side began anew: this one is over there
    kUnknown,  // it names a session that this side does not have
  };
  Match match(const SessionClaim& theirs) const noexcept;
  // A claim for a link that is up already, or was: the dialler did not know of it.
  bool isLate(const SessionClaim& theirs) const noexcept { return theirs.link <= links_; }

  // A connection is up, and both have exchanged their claims.
  void link(const SessionClaim& theirs);
  // It broke. Without another one by `deadline` the session is over.
  void breakOff(Time deadline) noexcept { deadline_ = deadline; }
  // The deadline is past.
  bool expired(Time now) const noexcept { return now >= deadline_; }
  // Ignore silence while this process itself was suspended.
  void postpone(std::chrono::nanoseconds lost) noexcept {
    if (deadline_ != kNever) deadline_ += lost;
  }

  // A data frame is whole; they come one after the other. `asked`: its sender wants an ack.
  void took(std::uint64_t sequence, bool asked);
  std::uint64_t received() const noexcept { return received_; }
  // An ack must go out now. `last_ack_sent`: the last one that went out on any frame.
  bool ackAsked(std::uint64_t last_ack_sent) const noexcept { return asked_ > last_ack_sent; }
  // Whether frames from before the last tick are not acknowledged yet. Call it once per tick.
  bool ackOverdue(std::uint64_t last_ack_sent) noexcept;

 private:
  static constexpr Time kNever = Time::max();

  std::uint64_t own_;
  std::uint64_t peer_ = 0;
  std::uint32_t links_ = 0;
  Time deadline_ = kNever;  // for another link
  std::uint64_t received_ = 0;
  std::uint64_t asked_ = 0;      // the last frame whose sender wants an ack
  std::uint64_t last_tick_ = 0;  // received_ at the last tick
};

// This side's random number for its session with each rank. A rank keeps its number until the
// session is over, also when its connection is accepted before its Peer exists.
class SessionNumbers {
 public:
  // Never 0. Drawn when it is first asked for.
  std::uint64_t of(std::int32_t rank);
  // The session with this number is over; the next one with the rank gets another.
  void forget(std::int32_t rank, std::uint64_t own);

 private:
  std::unordered_map<std::int32_t, std::uint64_t> own_;
};

}  // namespace weft::transport
