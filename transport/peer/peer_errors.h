// Why a peer is lost, in words for people. `who` is describePeer()'s text.
#pragma once

#include <chrono>
#include <string>

#include "transport/base/error.h"

namespace weft::transport::peer_errors {

Error noAddress(const std::string& who);
Error badAddress(const std::string& who, const Error& problem);
// It said goodbye.
Error shutDown(const std::string& who, const std::string& connected_for);
// Its connection broke, and no other is to be made.
Error broken(const std::string& who, const std::string& how);
// Its connection broke, and no other could be made. `why`: a sentence's end.
Error notReconnected(const std::string& who, const std::string& how, const std::string& why);
Error silent(const std::string& who, std::chrono::nanoseconds silence,
             std::chrono::nanoseconds heartbeat_interval);
// Another incarnation of it has connected.
Error restarted(const std::string& who);
// It has no session with this process any more.
Error lostSession(const std::string& who);
Error badClaim(const std::string& who, std::uint64_t received, std::uint64_t sent);
Error protocol(const std::string& who, const Error& problem);
// This side ended it.
Error endedWhileClosing(const std::string& who);
Error saidGoodbye(const std::string& who);
Error closedEarly(const std::string& who);

}  // namespace weft::transport::peer_errors
