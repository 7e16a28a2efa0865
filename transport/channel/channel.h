// Channel: where the frames to and from one peer are written and read.
//
// Its Outbox and its Inbox last as long as the peer. Its Link, and what goes beside the link
// (BulkPath, SharedMemoryPath), is replaced when a connection breaks: messages that were not
// acknowledged go again over the next link. It sends the acks and the heartbeats.
//
// Threads: send() and fillIn(): any; the rest: the loop thread.
// Ownership: part of its owner, which it keeps alive while work is posted.
// Failure: it tells how a link ended, once for each link, and leaves it to the owner to go on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "transport/channel/bulk_path.h"
#include "transport/channel/inbox.h"
#include "transport/channel/link.h"
#include "transport/channel/outbox.h"
#include "transport/channel/shared_memory_path.h"
#include "transport/connect/endpoint_context.h"
#include "transport/session/heartbeat.h"
#include "transport/session/session.h"

namespace weft::transport {

struct ChannelEnd {
  enum class Kind : std::uint8_t {
    kGoodbye,   // the peer shut down in order
    kBroken,    // `how`: another link may go on
    kStale,     // `how`: nothing came for long; another link may do better
    kSilent,    // nothing came for peer_timeout
    kProtocol,  // `problem`
  };
  Kind kind;
  std::string how;
  Error problem;
};

// The loop thread calls these.
class ChannelOwner : public std::enable_shared_from_this<ChannelOwner> {
 public:
  virtual ~ChannelOwner() = default;
  // Something is to be done on the loop thread: messages are queued and no link is up, or work(),
  // flush() or Outbox::takeUnsent() is due.
  virtual void onWorkAvailable() = 0;
  // All that was queued is written.
  virtual void onDrained() = 0;
  // detach() or close() should follow.
  virtual void onChannelEnd(ChannelEnd end) = 0;
};

class Channel {
 public:
  using Time = Heartbeat::Time;

  // `peer` may get another address meanwhile, on the loop thread.
  Channel(EndpointContext& context, const PeerInfo& peer, Session& session, ChannelOwner& owner);

  // As Endpoint::send().
  Error send(Message message, std::chrono::milliseconds wait);
  void fillIn(PeerStats& stats) const;

  // A link is up; the peer has received the messages up to number `received`. work() follows.
  void attach(std::shared_ptr<Stream> stream, std::uint64_t incarnation, std::uint64_t received,
              Dialler dialler);
  // Gives the link up; messages wait for another one.
  void detach();
  // Gives the link up, and send() fails with `reason` from now on.
  void close(const Error& reason);

  // While connected: sends an ack that was asked for, offers shared memory, dials the bulk
  // connection, writes what is queued; each if it is due.
  void work();
  void flush();
  // Queues the goodbye and writes.
  void sayGoodbye();
  // After onDrained(): the peer will read the end of the stream. False: the bulk connection has
  // something to write; onDrained() comes again.
  bool finishWriting();
  // Reads all that has come.
  void drain();

  // While connected, now and then: heartbeats, acks, idle memory. `late`: by how much it came late.
  void tick(Time now, std::chrono::nanoseconds late);

  Outbox& outbox() noexcept { return outbox_; }
  BulkPath& bulk() noexcept { return bulk_; }
  // Of the last link.
  const Heartbeat& heartbeat() const noexcept { return *heartbeat_; }
  // How long ago the first link was made, for people.
  std::string connectedFor() const;

 private:
  void postWork();  // any thread
  void dropLink();
  void onLinkEnd(const LinkEnd& end);
  void onDamaged();
  void onBroken(std::string how);
  void beat(Time now, std::chrono::nanoseconds late);
  void workLater(std::chrono::milliseconds pause);
  void sendHeartbeat();
  std::string describe() const;

  EndpointContext& context_;
  const PeerInfo& peer_;
  Session& session_;
  ChannelOwner& owner_;
  Outbox outbox_;
  SharedMemoryPath shared_memory_;
  BulkPath bulk_;
  Inbox inbox_;
  std::shared_ptr<Link> link_;
  std::optional<Heartbeat> heartbeat_;
  std::optional<Time> connected_at_;
  bool work_is_due_ = false;  // workLater() was called, and its time has not come
  std::atomic<std::uint64_t> bytes_received_{0};  // through the link; a sign of life
};

}  // namespace weft::transport
