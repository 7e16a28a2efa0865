// Peer: one life of another process of the group, from the moment it is known until it is lost or
// closed. It is a state machine (peer_state.h) that decides when to connect, reconnect, give up and
// say goodbye. Its Channel moves the frames, its PeerSession dials.
//
// When a link breaks, both sides dial, because perhaps only one of them can reach the other. So a
// dead process is told from a broken connection at once: nobody listens at its address any more. If
// both dials succeed, the connection dialled by the lower rank stays (Admission).
//
// Threads: send(), stats(), the state, rank() and name(): any; the rest: the loop thread.
// Failure: it fails once; all later sends get the same reason.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "transport/channel/channel.h"
#include "transport/connect/endpoint_context.h"
#include "transport/endpoint.h"
#include "transport/peer/peer_session.h"
#include "transport/peer/peer_state.h"

namespace weft::transport {

class Peer final : public ChannelOwner {
 public:
  // `on_finished`: called on the loop thread when the handler has been told all.
  Peer(EndpointContext& context, PeerInfo info, std::function<void()> on_finished);

  std::int32_t rank() const noexcept { return info_.rank; }
  const std::string& name() const noexcept { return info_.name; }
  // As Endpoint::send().
  Error send(Message message, std::chrono::milliseconds wait) {
    return channel_.send(std::move(message), wait);
  }
  PeerStats stats() const;
  PeerState state() const noexcept { return state_.load(std::memory_order_acquire); }
  // Whether it is lost or closed, perhaps without the handler having been told.
  bool over() const noexcept { return state() >= PeerState::kLost; }
  // Whether the handler has been told, or is being told now.
  bool finished() const noexcept { return state() == PeerState::kFinished; }

  // --- connections ---
  // A dialler has proved that it has this peer's rank. kNone: the peer is ready for adopt(); or it
  // is over, because the dialler is its next life, or the same one, with which it may meet again.
  RefusalCode admit(const Hello& hello, const SessionClaim& theirs);
  bool admitsBulk(const Hello& hello, const SessionClaim& theirs) {
    return channel_.bulk().admits(hello, theirs);
  }
  // What this side says of the session on a new connection.
  SessionClaim claim() { return session_.claim(); }
  void setAddress(std::string address) { info_.address = std::move(address); }
  bool mayAdopt() const noexcept;
  // Takes an authenticated stream to the peer, with what the peer says of the session. Only if
  // mayAdopt().
  void adopt(std::shared_ptr<Stream> stream, const Hello& hello, const SessionClaim& theirs,
             Dialler dialler = Dialler::kPeer);
  // Takes the peer's bulk connection, which admitsBulk() allowed.
  void adoptBulk(std::shared_ptr<Stream> stream) {
    channel_.bulk().adopt(std::move(stream), weak_from_this());
  }
  void tick(Heartbeat::Time now, std::chrono::nanoseconds late);

  // Whether it is lost, but the same life of it may be met again (Reunion).
  bool mayReturn() const noexcept;
  // 0: not known.
  std::uint64_t incarnation() const noexcept { return session_.incarnation(); }
  // Whether that is its incarnation, or its own is not known.
  bool isLife(std::uint64_t life) const noexcept { return !session_.isAnother(life); }

  // --- endings ---
  // It is lost for this reason; the handler is told later.
  void fail(Error reason);
  // Writes what is queued, says goodbye and ends when the peer ends, too. The handler hears of
  // unsent messages only.
  void closeGracefully();
  // Ends at once; the handler hears of unsent messages only.
  void closeNow();
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
  RefusalCode admitAnotherLife(const Hello& hello, const SessionClaim& theirs);
  bool saidGoodbye() const noexcept;
  bool yieldLink();
  void reconnect(std::string how, Heartbeat::Time deadline, bool silent = false);
  void redial();
  void onDeadlinePassed(Heartbeat::Time now);
  void failSilent(Heartbeat::Time now);
  void sayGoodbye();
  void end(PeerState how, Error reason);
  void notifyClosed();
  template <typename Call>
  void tell(Call call);
  Heartbeat::Time reconnectDeadline() const {
    return EventLoop::Clock::now() + session_.reconnectTime();
  }
  std::string describe() const;

  EndpointContext& context_;
  PeerInfo info_;  // the address may change
  const std::function<void()> on_finished_;
  PeerSession session_;
  Channel channel_;

  std::atomic<PeerState> state_{PeerState::kIdle};  // written by the loop thread
  Error reason_;                                    // over()
  std::uint64_t warned_of_ = 0;  // the last incarnation that wanted to replace it
  std::atomic<std::uint64_t> reconnects_{0};
};

}  // namespace weft::transport
