// Why a peer is lost, as texts for people. `who` is describePeer()'s text.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "transport/base/error.h"
#include "transport/base/peer_name.h"

namespace weft::transport::peer_errors {

inline constexpr const char* kWhatToDo =
    "Look at its own output; if it has ended, start it or the group again";

inline Error unreachable(const std::string& who, const Error& why) {
  return {why.code(), who + " cannot be reached: " + why.text()};
}

// The peer said goodbye, as it also does when Python ends, by an exception too.
inline Error shutDown(const std::string& who, const std::string& connected_for) {
  return {ErrorCode::kPeerClosed,
          who + " has shut down or its program has ended, " + connected_for +
              " after it connected; nothing more can be sent to it. Look at its own output if it "
              "should still be there"};
}

// Its connection broke, and no other is to be made.
inline Error broken(const std::string& who, const std::string& how) {
  return {ErrorCode::kPeerLost, who + " is lost: " + how +
                                    "; its process was probably killed or its host is down. " +
                                    kWhatToDo};
}

// Its connection broke, and no other could be made. `why` ends the sentence.
inline Error notReconnected(const std::string& who, const std::string& how,
                            const std::string& why) {
  return {ErrorCode::kPeerLost,
          who + " is lost: " + how + ", and it could not be reconnected" + why + ". " + kWhatToDo};
}

// The peer lives, but has another process of this worker's rank.
inline Error displaced(const std::string& who) {
  return {ErrorCode::kAuthFailed,
          who +
              " is lost: another process has taken this worker's rank and name there; end this "
              "process, or start it under another rank"};
}

inline Error silent(const std::string& who, std::chrono::nanoseconds silence,
                    std::chrono::nanoseconds heartbeat_interval) {
  return {ErrorCode::kPeerLost,
          who + " is lost: it sent nothing for " + seconds(silence) +
              ", not even a heartbeat (one is due every " + seconds(heartbeat_interval) +
              "); its process is stopped or gets no CPU time, or the network to its host is down"};
}

// Another incarnation of the peer has connected.
inline Error restarted(const std::string& who) {
  return {ErrorCode::kPeerLost,
          who + " is lost: it was started again. What refers to its former process fails"};
}

// The peer has no session with this process any more.
inline Error lostSession(const std::string& who) {
  return {ErrorCode::kPeerLost,
          who +
              " is lost: it lost its session state, because it had declared this worker lost or "
              "removed it"};
}

inline Error badClaim(const std::string& who, std::uint64_t received, std::uint64_t sent) {
  return {ErrorCode::kProtocol, who + " is cut off: it claims to have received message " +
                                    std::to_string(received) + ", but only " +
                                    std::to_string(sent) + " were sent"};
}

// This process threw an exception, mostly for lack of memory. The two may meet again.
inline Error notServed(const std::string& who, const std::string& thrown) {
  return {ErrorCode::kPeerLost,
          who + " is lost: its connection could not be served here (" + thrown + ")"};
}

inline Error protocol(const std::string& who, const Error& problem) {
  return {problem.code(), who + " is cut off: " + problem.text() +
                              "; check that both run the same versions and limits"};
}

// This side ended it.
inline Error endedWhileClosing(const std::string& who) {
  return {ErrorCode::kShutdown, who + " ended while this endpoint was closing"};
}

inline Error saidGoodbye(const std::string& who) {
  return {ErrorCode::kShutdown, "this endpoint has said goodbye to " + who};
}

inline Error closedEarly(const std::string& who) {
  return {ErrorCode::kShutdown, "this endpoint was closed before all was sent to " + who};
}

}  // namespace weft::transport::peer_errors
