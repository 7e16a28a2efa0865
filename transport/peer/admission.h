// Admission: decides who may connect, and as whom.
//
// Each pair of peers has one connection. If both dial at once, the one dialled by the lower rank
// stays (admitKnown()): the higher rank drops its own attempt when the other's arrives, and the
// lower rank refuses the other's as a duplicate once the peer may have heard of its own. A refused
// dialler waits for the other connection, and tries again until connect_timeout in case it never
// comes.
//
// A connection that broke is made again by the same rules. A side that has not noticed the break
// gives up its old connection for the new one of the same session. A dialler that names a session
// which is over here is refused (kStale).
//
// A life is displaced once its successor was admitted: it stays out, even if the successor ends.
// That may happen at once, if other processes still hear from the former life and refuse the
// successor as a duplicate. Then the former life goes on with those processes only.
//
// Threads: the endpoint's loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "transport/auth/handshake.h"
#include "transport/connect/acceptor.h"
#include "transport/connect/endpoint_context.h"
#include "transport/peer/peer_table.h"

namespace weft::transport {

class Admission final : public AcceptPolicy {
 public:
  // `replaced`: called when a lost peer of that rank has a successor, or is back.
  using Replaced = std::function<void(std::int32_t rank)>;

  Admission(EndpointContext& context, PeerTable& peers, Replaced replaced)
      : context_(context), peers_(peers), on_replaced_(std::move(replaced)) {}

  RefusalCode admit(const Hello& hello, const SessionClaim& theirs, SessionClaim& ours) override;
  // Both sides have proved themselves:
  //
  //   admit() --> onHandshakeDone() --> Peer::adopt() at once: the peer waits for a connection
  //                                 --> join(), posted: a new peer, or a lost one's successor
  //                                 --> hold(), until connectPending(): nobody has named it yet
  void onHandshakeDone(AuthenticatedPeer who);
  // A lost peer was dialled and has answered (Reunion).
  void reunite(AuthenticatedPeer who) { join(std::move(who), Dialler::kSelf); }
  // `peer` was just added: adopts its connection if it has connected before.
  void connectPending(const std::shared_ptr<Peer>& peer);
  void tick(EventLoop::Clock::time_point now);
  // Admits nobody any more.
  void close();

 private:
  // An authenticated connection of a rank that addPeer() has not named yet. It stays unread.
  struct PendingPeer {
    AuthenticatedPeer who;
    EventLoop::Clock::time_point until;
    EventLoop::Clock::time_point heartbeat_at;
  };

  // A dialler has proved that it has this peer's rank. kNone: the peer is ready for adopt(); or it
  // is over, because the dialler is its next life, or the same one, with which it may meet again.
  RefusalCode admitKnown(Peer& peer, const Hello& hello, const SessionClaim& theirs);
  // The same for another life of the peer than the one that is known here.
  RefusalCode mayReplace(Peer& peer, const Hello& hello, const SessionClaim& theirs);
  RefusalCode admitBulk(Peer* peer, const Hello& hello, const SessionClaim& theirs,
                        SessionClaim& ours);
  void join(AuthenticatedPeer who, Dialler dialler);
  void hold(AuthenticatedPeer who);
  bool sendHeartbeat(const PendingPeer& pending);

  EndpointContext& context_;
  PeerTable& peers_;
  const Replaced on_replaced_;
  std::unordered_map<std::int32_t, PendingPeer> pending_;
  std::unordered_set<std::uint64_t> displaced_;  // their incarnations
  // By rank, the incarnation of the last one that wanted to replace a peer that is alive.
  std::unordered_map<std::int32_t, std::uint64_t> warned_of_;
  bool closed_ = false;
};

}  // namespace weft::transport
