// Peer: one life of another process of the group, from the moment it is known until it is lost or
// closed. A state machine: it decides when to connect, reconnect, give up and say goodbye; what
// goes over a connection is its Channel's.
//
// When a link breaks, both sides dial: whoever of the two can be reached will be, and a dead
// process is told from a broken connection at once, because nobody listens where it did. Of two
// connections that meet the one dialled by the lower rank stays (Admission).
//
// Threads: send(), stats(), the state, rank() and name(): any; the rest: the loop thread.
// Failure: it fails once, with a reason that all later sends get, too.
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
  // `on_finished`: called on the loop thread when it has told all.
  Peer(EndpointContext& context, PeerInfo info, std::function<void()> on_finished);

  std::int32_t rank() const noexcept { return info_.rank; }
  const std::string& name() const noexcept { return info_.name; }
  // As Endpoint::send().
  Error send(Message message, std::chrono::milliseconds wait) {
    return channel_.send(std::move(message), wait);
  }
  PeerStats stats() const;
  PeerState state() const noexcept { return state_.load(std::memory_order_acquire); }
  // It is ending or over; finished(): the handler has been told (or is being told now).
  bool over() const noexcept { return state() >= PeerState::kLost; }
  bool finished() const noexcept { return state() == PeerState::kFinished; }

  // --- connections ---
  // A dialler has proved that it has this peer's rank. With kNone the peer is ready for adopt(), or
  // over: because it is lost, and the dialler another life of it.
  RefusalCode admit(const Hello& hello, const SessionClaim& theirs);
  bool admitsBulk(const Hello& hello, const SessionClaim& theirs) {
    return channel_.bulk().admits(hello, theirs);
  }
  // What this side says of the session on a connection to be made.
  SessionClaim claim() { return session_.claim(); }
  void setAddress(std::string address) { info_.address = std::move(address); }
  bool mayAdopt() const noexcept;
  // An authenticated stream to it, and what it says of the session. If mayAdopt().
  void adopt(std::shared_ptr<Stream> stream, const Hello& hello, const SessionClaim& theirs,
             Dialler dialler = Dialler::kPeer);
  // Its bulk connection, which admitsBulk() allowed.
  void adoptBulk(std::shared_ptr<Stream> stream) {
    channel_.bulk().adopt(std::move(stream), weak_from_this());
  }
  void tick(Heartbeat::Time now, std::chrono::nanoseconds late);

  // Loop thread: over, and the same life of it may be met again.
  bool mayReturn() const noexcept;
  // Loop thread; 0: not known.
  std::uint64_t incarnation() const noexcept { return session_.incarnation(); }
  // Loop thread: whether that is its incarnation, as far as it is known.
  bool isLife(std::uint64_t life) const noexcept { return !session_.isAnother(life); }

  // --- endings ---
  // It is lost, for this reason; the handler is told, later.
  void fail(Error reason);
  // Writes what is queued and says goodbye; ends without telling when the peer ends, too.
  void closeGracefully();
  // Ends at once without telling; messages that were not written are reported.
  void closeNow();
  // It is lost, and lives: another process has this worker's place there. The handler is told.
  void displacedThere();

 private:
  void onWorkAvailable() override;
  void onDrained() override;
  void onChannelEnd(ChannelEnd end) override;

  void moveTo(PeerState state);
  void connect();
  void onConnected(Connector::Outcome outcome);
  template <typename Step>
  void orFail(Step step);
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
