// Admission: who may come in, and as whom.
//
// One connection for each pair. When both dial at once, the one dialled by the lower rank stays:
// the higher rank drops its own attempt when the other's arrives, the lower refuses the other's as
// a duplicate once the peer may have heard of its own. A refused dialler waits for that connection,
// and tries again until connect_timeout in case it never comes.
//
// A connection that broke is made again by the same rules. A side that has not noticed yet gives up
// its old connection for the new one of the same session; a dialler that names a session which is
// over here is refused (kStale).
//
// Threads: the endpoint's loop thread.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "transport/connect/acceptor.h"
#include "transport/connect/endpoint_context.h"
#include "transport/peer/peer_table.h"

namespace weft::transport {

class Admission {
 public:
  Admission(EndpointContext& context, PeerTable& peers) : context_(context), peers_(peers) {}

  // The dialler has proved that it holds the key: is it welcome? With kNone `ours` is filled in.
  RefusalCode admit(const Hello& hello, const SessionClaim& theirs, SessionClaim& ours);
  // It was, and both sides are proved. Follows admit() directly.
  void admitted(AuthenticatedPeer who);
  // `peer` was added just now: it may have connected before.
  void connectPending(const std::shared_ptr<Peer>& peer);
  void tick(EventLoop::Clock::time_point now);
  // Nobody is admitted any more.
  void close();

 private:
  // An authenticated connection of a rank that addPeer() has not named yet. It is not read.
  struct PendingPeer {
    AuthenticatedPeer who;
    EventLoop::Clock::time_point until;
    EventLoop::Clock::time_point heartbeat_at;
  };

  RefusalCode admitBulk(Peer* peer, const Hello& hello, const SessionClaim& theirs,
                        SessionClaim& ours);
  RefusalCode admitTo(Peer& peer, const Hello& hello, const SessionClaim& theirs);
  void join(AuthenticatedPeer who);
  void hold(AuthenticatedPeer who);
  bool sendHeartbeat(const PendingPeer& pending);

  EndpointContext& context_;
  PeerTable& peers_;
  std::unordered_map<std::int32_t, PendingPeer> pending_;
  bool closed_ = false;
};

}  // namespace weft::transport
