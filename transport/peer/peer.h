// Peer: one life of another process of the group, from the moment it is known until it is lost
// or closed. Owns its way out (Outbox), its connection attempt (Connector) and its Link; its
// Session makes of one link after the other one conversation.
//
// When a link breaks, both sides dial: whoever of the two can be reached will be, and a dead
// process is told from a broken connection at once, because nobody listens where it did. Of two
// connections that meet the one dialled by the lower rank stays, as at the start
// (endpoint_admission.cpp).
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/arena/arena_sender.h"
#include "transport/arena/arena_view.h"
#include "transport/endpoint.h"
#include "transport/io/event_loop.h"
#include "transport/peer/bulk_connection.h"
#include "transport/peer/connector.h"
#include "transport/peer/link.h"
#include "transport/peer/outbox.h"
#include "transport/peer/peer_state.h"
#include "transport/session/heartbeat.h"
#include "transport/session/session.h"

namespace weft::transport {

// What all peers of an endpoint share. Outlives them.
struct PeerContext {
  EventLoop& loop;
  const EndpointOptions& options;
  const Identity& self;
  const std::string own_host;
  EndpointHandler& handler;
  // Loop thread.
  std::function<void()> on_finished;  // a peer is gone and has told all it had to
  std::function<std::uint64_t(std::int32_t rank)> session_of;  // this side's number for it
  std::function<void(std::int32_t rank, std::uint64_t own)> session_over;
  std::function<EventLoop*()> bulk_loop;  // made when it is wanted; null: it cannot be
};

class Peer final : public FrameSink, public std::enable_shared_from_this<Peer> {
 public:
  static std::shared_ptr<Peer> make(PeerContext& context, PeerInfo info);

  // --- any thread ---
  std::int32_t rank() const noexcept { return info_.rank; }
  const std::string& name() const noexcept { return info_.name; }
  Error send(Message message, std::chrono::milliseconds wait);
  PeerStats stats() const;
  // The handler has been told that it is lost (or is being told now).
  bool lossTold() const noexcept { return loss_told_.load(); }

  // --- loop thread ---
  PeerState state() const noexcept { return state_; }
  bool finished() const noexcept { return finished_; }
  std::uint64_t incarnation() const noexcept { return incarnation_; }
  bool closedInOrder() const noexcept { return reason_.code() == ErrorCode::kPeerClosed; }
  // A dial of ours that the peer may already have answered.
  bool handshaking() const noexcept;

  void setAddress(std::string address);
  // What this side says of the session on a connection to be made.
  SessionClaim claim();
  bool mayAdopt() const noexcept { return mayFollow(state_, PeerState::kConnected); }
  Session::Match match(const SessionClaim& theirs);
  bool isLate(const SessionClaim& theirs) const noexcept { return session_.isLate(theirs); }
  // kConnected: gives the link up for another of the same session, which adopt() brings next.
  // False: reading the rest of it showed that the peer is gone.
  bool yieldLink();
  // An authenticated stream to it, and what it says of the session. State kIdle, kDialling or
  // kReconnecting.
  enum class Dialler : std::uint8_t { kPeer, kSelf };
  void adopt(std::shared_ptr<Stream> stream, const Hello& hello, const SessionClaim& theirs,
             Dialler dialler = Dialler::kPeer);
  // It has dialled a bulk connection of the link that stands, and what it says of the session.
  bool admitsLane(const Hello& hello, const SessionClaim& theirs);
  void adoptBulkConnection(std::shared_ptr<Stream> stream);
  void tick(Heartbeat::Time now, std::chrono::nanoseconds late);
  // Gone, and told once.
  void lose(Error reason);
  // Reasons that others find.
  Error startedAgain() const;
  Error begunAnew() const;
  // Writes what is queued, says goodbye; gone without telling when the peer ends too.
  void leave();
  // Gone at once, without telling; messages not yet written are reported.
  void abandon();

 private:
  Peer(PeerContext& context, PeerInfo info);

  Error onFrameHead(const FrameHead& head) override;
  void onFrameTaken(const FrameHead& head) override;
  Disposition onFrameHeader(std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
                            std::vector<OwnedBuffer>& buffers) override;
  void onFrame(std::span<const std::byte> header, std::vector<OwnedBuffer> buffers) override;
  Result<OwnedBuffer> arenaBuffer(const ArenaDescriptor& block, std::uint64_t size) override;
  Result<OwnedBuffer> exportedBuffer(const ArenaDescriptor& place, std::uint64_t size) override;
  Error onArenaFrame(FrameKind kind, std::span<const std::byte> body) override;
  Error readFromBulk(std::span<const iovec> into) override;
  bool bulkArrived() override;

  void moveTo(PeerState state);
  void onWorkAvailable();
  void dial();
  void startConnector(const Address& address, Connector::RetryBackoff patience);
  void onDialled(Connector::Outcome outcome);
  // The link is of no use any more; another may take its place until `deadline`.
  enum class Redial : std::uint8_t { kNow, kUnlessAdopted };
  void breakLink(std::string how, Heartbeat::Time deadline, Redial redial = Redial::kNow);
  void redial();
  void dropLink();
  void giveUp(Heartbeat::Time now);
  void beat(Heartbeat::Time now, std::chrono::nanoseconds late);
  void ackIfAsked();
  void flush();
  // Shared memory (peer_arena.cpp).
  void offerArena();
  Error takeArena(const ArenaOffer& offer);
  // The second connection (peer_lane.cpp).
  void noteLarge();  // any thread
  bool mayHaveBulkConnection() const noexcept;
  void connectBulk();
  void onBulkConnected(Connector::Outcome outcome);
  void breakBulkConnection(const std::string& how);
  void dropLane();
  void sayGoodbye();
  void onLinkEnd(const LinkEnd& end);
  void closeIfDone();
  void go(Error reason, bool tell);
  void finish();
  void retire(std::shared_ptr<Connector>& dial);
  Error brokenReason(const std::string& how) const;
  Error silentReason(Heartbeat::Time now) const;
  std::chrono::milliseconds reconnectTime() const;
  std::string describe() const;
  std::string connectedFor() const;

  PeerContext& context_;
  const PeerInfo info_;
  Outbox outbox_;
  ArenaSender arena_out_;

  PeerState state_ = PeerState::kIdle;
  std::string address_;
  std::uint64_t incarnation_ = 0;
  std::shared_ptr<Connector> connector_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<ArenaView> arena_in_;  // loop thread; buffers lent out keep it too
  struct Taken {
    ArenaDescriptor where;
    OwnedBuffer buffer;
  };
  std::vector<Taken> arena_taking_;     // by the frame that is being read
  std::vector<Taken> arena_taken_;      // by the same one, when the link broke within it
  std::vector<UniqueFd> exported_fds_;  // of the frame that is being read
  bool arena_offered_ = false;          // on this link, by us
  bool arena_seen_ = false;             // on this link, by the peer
  bool dialled_ = false;                // the link, by us
  std::shared_ptr<Connector> bulk_connector_;
  std::shared_ptr<BulkConnection> bulk_;
  std::optional<std::vector<iovec>>
      bulk_early_;            // to be read from the bulk connection that is being dialled
  bool bulk_failed_ = false;  // it could not be made, or brought nothing: no other is tried
  Session session_;
  std::uint64_t acked_ = 0;   // the last ack that came
  std::string broke_;         // kReconnecting: how
  bool fell_silent_ = false;  // kReconnecting: nothing came for long
  std::optional<Heartbeat> heartbeat_;
  Heartbeat::Time connected_at_{};  // first
  bool leaving_ = false;            // leave() came while dialling: goodbye follows when connected
  bool peer_ended_ = false;         // kClosing: the peer will send no more
  bool wrote_all_ = false;          // kClosing: our goodbye is written
  bool tell_ = false;               // kGone: the handler is to be told
  bool finished_ = false;
  Error reason_;                 // kGone
  std::string handler_problem_;  // an exception of the handler

  std::atomic<std::uint64_t> bytes_received_{0};  // through the link; a sign of life
  std::atomic<std::uint64_t> arena_bytes_received_{0};
  std::atomic<std::uint64_t> messages_received_{0};
  std::atomic<std::uint64_t> reconnects_{0};
  std::atomic<bool> loss_told_{false};
  std::atomic<bool> bulk_wanted_{false};  // a large message was sent, or came
  const std::shared_ptr<BulkCounts> bulk_counts_ = std::make_shared<BulkCounts>();
};

}  // namespace weft::transport
