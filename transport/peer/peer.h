// Peer: one life of another process of the group, from the moment it is known until it is lost or
// closed. It is a state machine (peer_state.h) that decides when to connect, reconnect, give up and
// say goodbye. Its Channel moves the frames, its PeerSession dials, its PeerEnd tells the handler
// of its end.
//
// When a link breaks, both sides dial, because perhaps only one of them can reach the other. So a
// dead process is told from a broken connection at once: nobody listens at its address any more. If
// both dials succeed, the connection dialled by the lower rank stays (Admission).
//
// Threads: send(), stats(), life(), rank() and name(): any; the rest: the loop thread.
// Failure: it fails once; all later sends get the same reason.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "transport/channel/channel.h"
#include "transport/connect/endpoint_context.h"
#include "transport/endpoint.h"
#include "transport/peer/peer_end.h"
#include "transport/peer/peer_session.h"
#include "transport/peer/peer_state.h"

namespace weft::transport {

class Peer final : public ChannelOwner {
 public:
  // `on_finished`: called on the loop thread when the handler has been told all.
  Peer(EndpointContext& context, PeerInfo info, std::function<void()> on_finished);

  std::int32_t rank() const noexcept { return info_.rank; }
  const std::string& name() const noexcept { return info_.name; }
  const PeerLife& life() const noexcept { return life_; }
  // As Endpoint::send().
  Error send(Message message, std::chrono::milliseconds wait) {
    return channel_.send(std::move(message), wait);
  }
  PeerStats stats() const;

  // --- connections ---
  PeerSession& session() noexcept { return session_; }
  BulkPath& bulk() noexcept { return channel_.bulk(); }
  void setAddress(std::string address) { info_.address = std::move(address); }
  // Takes an authenticated stream to the peer, with what the peer says of the session. Only if
  // life().mayAdopt().
  void adopt(std::shared_ptr<Stream> stream, const Hello& hello, const SessionClaim& theirs,
             Dialler dialler = Dialler::kPeer);
  // While connected: reads all that has come, which may be the link's end.
  void readRest();
  // While connected: gives up the link for another one of the same session, with which adopt() is
  // called next. False: reading the rest of the link showed that the peer is gone.
  bool yieldLink();
  // How long nothing came. Only once it was connected.
  std::chrono::nanoseconds silence() const {
    return channel_.heartbeat().silence(EventLoop::Clock::now());
  }
  void tick(Heartbeat::Time now, std::chrono::nanoseconds late);

  // --- endings ---
  // It is lost for this reason; the handler is told later.
  void fail(Error reason);
  // Writes what is queued, says goodbye and ends when the peer ends, too. The handler hears of
  // unsent messages only.
  void closeGracefully();
  // Ends at once; the handler hears of unsent messages only.
  void closeNow();
  // Whether it is over because the peer said goodbye.
  bool closedInOrder() const noexcept { return end_.reason().code() == ErrorCode::kPeerClosed; }
  // Whether it is lost, but the same life of it may be met again (Reunion).
  bool mayReturn() const noexcept {
    return life_.over() && end_.mayReturn() && !session_.replaced();
  }
  // A peer that is lost, and lives, has another process in this worker's place. Tells the handler.
  void displacedThere();

 private:
  void onWorkAvailable() override;
  void onDrained() override;
  void onLinkEnd(LinkEnd end) override;

  void moveTo(PeerState state);
  void connect();
  void onConnected(Connector::Outcome outcome);
  template <typename Step>
  void failIfThrown(Step step);
  void reconnect(std::string how, Heartbeat::Time deadline, bool silent = false);
  void redial();
  void sayGoodbye();
  void end(PeerState how, Error reason);
  void notifyClosed();
  Heartbeat::Time reconnectDeadline() const {
    return EventLoop::Clock::now() + session_.reconnectTime();
  }
  std::string describe() const;

  EndpointContext& context_;
  PeerInfo info_;  // the address may change
  const std::function<void()> on_finished_;
  PeerLife life_;
  PeerEnd end_;
  PeerSession session_;
  Channel channel_;
};

}  // namespace weft::transport
