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
// A life whose successor came in is displaced: it stays out, whatever becomes of the successor. The
// successor may end at once, because other processes still hear from that life and refuse it as a
// duplicate: then that life goes on with those only, until it is started again.
//
// Threads: the endpoint's loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "transport/auth/replay_guard.h"
#include "transport/connect/acceptor.h"
#include "transport/connect/endpoint_context.h"
#include "transport/peer/peer_table.h"

namespace weft::transport {

class Admission final : public AcceptPolicy {
 public:
  // `replaced`: a lost peer of that rank has a successor, or is back.
  using Replaced = std::function<void(std::int32_t rank)>;

  Admission(EndpointContext& context, PeerTable& peers, Replaced replaced)
      : context_(context), peers_(peers), on_replaced_(std::move(replaced)) {}

  bool nonceIsFresh(const Nonce& nonce) override { return replays_.fresh(nonce); }
  RefusalCode admit(const Hello& hello, const SessionClaim& theirs, SessionClaim& ours) override;
  // It was welcome, and both sides are proved. Follows admit() directly.
  void admitted(AuthenticatedPeer who);
  // A lost peer was dialled, and is met again (Reunion).
  void reunite(AuthenticatedPeer who) { join(std::move(who), Dialler::kSelf); }
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
  void join(AuthenticatedPeer who, Dialler dialler);
  void hold(AuthenticatedPeer who);
  bool sendHeartbeat(const PendingPeer& pending);

  EndpointContext& context_;
  PeerTable& peers_;
  const Replaced on_replaced_;
  ReplayGuard replays_;
  std::unordered_map<std::int32_t, PendingPeer> pending_;
  std::unordered_set<std::uint64_t> displaced_;  // incarnations: one for each restart
  bool closed_ = false;
};

}  // namespace weft::transport
