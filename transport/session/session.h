// Session: the conversation of two processes across their connections. Two processes have at most
// one session; it begins with their first connection, outlives connections that break, and ends
// with its Peer.
//
// Each side numbers its data frames 1, 2, 3 … for as long as the session lasts, and keeps what it
// wrote until the other side has acknowledged it (FrameQueue). On each new connection a side says
// which frame it received last (SessionClaim), and the other side continues after that one. So
// every frame arrives once and in order, however often the connection breaks.
//
// Acks are cumulative, and any frame that goes the other way carries one. A frame with nothing but
// an ack is sent only if the sender asks for it, because its replay buffer fills
// (FrameHead::kAckNow), or if frames have waited for a whole tick.
//
// This class has the receiving half and the rules, without IO, clock (time is an argument) or
// thread. FrameOrder and the Outbox have the sending half.
//
// Threads: received() and noteAckSent(): any; the rest: the endpoint's loop thread.
#pragma once

#include <atomic>
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

  // What this side claims on a new connection. Only while no link brings frames, because the claim
  // is final.
  SessionClaim claim() const noexcept { return {own_, peer_, received(), links_ + 1}; }

  // The same for a bulk connection of the link that is up.
  SessionClaim bulkClaim() const noexcept { return {own_, peer_, received(), links_, 1}; }
  // The number of the link that is up, or was up last, counted from 1; 0: there was none.
  std::uint32_t linkNumber() const noexcept { return links_; }

  // What the other side's claim means.
  enum class Match : std::uint8_t {
    kSame,     // this session, or its beginning
    kAnother,  // the other side has begun another session, so this one is over there
    kUnknown,  // it names a session that this side does not have
  };
  Match match(const SessionClaim& theirs) const noexcept;
  // Whether the claim is for a link number that this side has used already: the dialler missed that
  // link.
  bool isLate(const SessionClaim& theirs) const noexcept { return theirs.link <= links_; }

  // A connection is up, and both have exchanged their claims.
  void beginLink(const SessionClaim& theirs);
  // The link broke. Without another one by `deadline` the session is over.
  void breakOff(Time deadline) noexcept { deadline_ = deadline; }
  // Whether the deadline has passed.
  bool expired(Time now) const noexcept { return now >= deadline_; }
  // Ignore silence while this process itself was suspended.
  void postpone(std::chrono::nanoseconds lost) noexcept {
    if (deadline_ != kNever) deadline_ += lost;
  }

  // The next data frame is whole. `asked`: its sender wants an ack.
  void took(std::uint64_t sequence, bool asked);
  // The number of the last data frame that came. Every frame that is sent acknowledges it.
  std::uint64_t received() const noexcept { return received_.load(std::memory_order_relaxed); }
  // A frame with this ack is being sent.
  void noteAckSent(std::uint64_t ack) noexcept { ack_sent_.store(ack, std::memory_order_relaxed); }
  // Whether an ack must be sent now.
  bool ackAsked() const noexcept { return asked_ > ackSent(); }
  // Whether frames from before the last tick are not acknowledged yet. Call it once per tick.
  bool ackOverdue() noexcept;

 private:
  static constexpr Time kNever = Time::max();

  std::uint64_t ackSent() const noexcept { return ack_sent_.load(std::memory_order_relaxed); }

  std::uint64_t own_;
  std::uint64_t peer_ = 0;
  std::uint32_t links_ = 0;
  Time deadline_ = kNever;  // for another link
  std::atomic<std::uint64_t> received_{0};
  std::atomic<std::uint64_t> ack_sent_{0};  // the last one, on any frame
  std::uint64_t asked_ = 0;                 // the last frame whose sender wants an ack
  std::uint64_t last_tick_ = 0;             // received_ at the last tick
};

// This side's random number for its session with each rank. The number stays until the session is
// over, even if a connection is accepted before its Peer exists.
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
