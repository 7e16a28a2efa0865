// Channel: writes and reads the frames to and from one peer.
//
// Its Outbox and its Inbox last as long as the peer. Its Link, and what belongs to the link in
// BulkPath and SharedMemoryPath, is replaced when a connection breaks; messages that were not
// acknowledged are sent again over the next link. It also sends the acks and the heartbeats.
//
// Threads: send() and fillIn(): any; the rest: the loop thread.
// Ownership: part of its owner, which it keeps alive while work is posted.
// Failure: it tells the owner how a link ended, once for each link; the owner decides what follows.
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

// The loop thread calls these.
class ChannelOwner : public std::enable_shared_from_this<ChannelOwner> {
 public:
  virtual ~ChannelOwner() = default;
  // The loop thread has something to do: messages are queued and no link is up, or work(), flush()
  // or Outbox::takeUnsent() is due. Or nothing: each tick calls it, too.
  virtual void onWorkAvailable() = 0;
  // All that was queued is written.
  virtual void onDrained() = 0;
  // The link has ended; detach() or close() should follow.
  virtual void onLinkEnd(LinkEnd end) = 0;
};

class Channel {
 public:
  using Time = Heartbeat::Time;

  // `peer`'s address may change later, on the loop thread.
  Channel(EndpointContext& context, const PeerInfo& peer, Session& session, ChannelOwner& owner);

  // As Endpoint::send().
  Error send(Message message, std::chrono::milliseconds wait);
  void fillIn(PeerStats& stats) const;

  // A link is up; the peer has received the messages up to number `received`. Follow with work().
  void attach(std::shared_ptr<Stream> stream, std::uint64_t incarnation, std::uint64_t received,
              Dialler dialler);
  // Gives the link up; messages wait for another one.
  void detach();
  // Gives the link up, and send() fails with `reason` from now on. If it throws, call it again.
  void close(const Error& reason);

  // While connected, each if it is due: sends an ack that was asked for, offers shared memory,
  // dials the bulk connection, writes what is queued.
  void work();
  void flush();
  // Queues the goodbye and writes.
  void sayGoodbye();
  // After onDrained(): ends the writing side of the stream. False: the bulk connection still has
  // something to write; onDrained() comes again.
  bool finishWriting();
  // Reads all that has arrived.
  void drain();

  // While connected, now and then: heartbeats, acks, idle memory. `late`: how late the tick is.
  void tick(Time now, std::chrono::nanoseconds late);

  // Releases what nobody has released: acknowledged messages, a former link. Not from within one of
  // a link's functions.
  void tidy() {
    outbox_.tidy();
    retired_.reset();
  }
  // Calls ChannelOwner::onWorkAvailable() later. Any thread. Without memory to post it, the owner's
  // next tick does it.
  void postWork() noexcept;

  Outbox& outbox() noexcept { return outbox_; }
  BulkPath& bulk() noexcept { return bulk_; }
  // The heartbeat of the last link.
  const Heartbeat& heartbeat() const noexcept { return *heartbeat_; }
  // While connected: for how long, for people.
  std::string connectedFor() const { return link_->upFor(); }

 private:
  Error sendOne(Message message, std::chrono::milliseconds wait);
  void dropLink();
  void beat(Time now, std::chrono::nanoseconds late);
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
  std::shared_ptr<Link> retired_;  // the one before, until none of its functions can be running
  std::optional<Heartbeat> heartbeat_;
  std::atomic<std::uint64_t> bytes_received_{0};  // through the link
};

}  // namespace weft::transport
