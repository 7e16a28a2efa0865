// Endpoint: a process's place in a group of processes that send each other messages. The public
// face of transport/.
//
// It listens, knows its peers by rank, and connects to a peer when the first message for it is sent
// (no full mesh at start). Both sides authenticate each other before more than a fixed-size hello
// is read. It tells once when a peer is lost, and why.
//
// Threads. The endpoint has one loop thread at a time, either its own or one that waits in drive().
// Once a bulk connection is made for large messages (BulkConnection), another thread moves bytes,
// and nothing else. Any thread may call any function, but the loop thread neither drive() nor
// close(). Handler methods are called on the loop thread, one at a time, with no lock held; they
// must not block.
//
// Order. Messages that one thread sends to a peer arrive in the order of send(). Messages of
// different threads interleave whole.
//
// Broken connections. As long as the peer lives, a connection that breaks is made again, and all
// messages arrive once and in order; it only takes longer. The peer is lost if the connection is
// not made again within reconnect_timeout, or if nothing listens at the peer's address any more.
//
// Failure. Every function that can fail returns an Error. A peer that is lost stays lost: later
// sends fail at once with the same reason, until addPeer() names a new life of it (another
// address), or onPeerReturned() tells that it is back. In a child that was forked afterwards every
// function fails at once, and touches nothing of the parent's.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/base/arrivals.h"
#include "transport/base/buffer.h"
#include "transport/base/deadline.h"
#include "transport/base/driver.h"
#include "transport/base/error.h"
#include "transport/base/spin.h"
#include "transport/options.h"

namespace weft::transport {

struct PeerInfo {
  std::int32_t rank = -1;
  std::string name;
  std::string address;  // what that peer's Endpoint::address() returned
};

// Why and how a peer went.
struct PeerLoss {
  std::int32_t rank = -1;
  std::string name;
  // kPeerClosed when it said goodbye, else kPeerLost, kConnectFailed, kDuplicate, kAuthFailed…
  Error reason;
};

// What to do with a message whose lengths are known and whose buffers are still on the wire.
enum class Disposition : std::uint8_t {
  kAccept,   // read the buffers into the memory given
  kDiscard,  // read past them, taking no memory; the message is not delivered
  kRefuse,   // the header is not this application's: closes the link, and the peer is lost
};

// An exception of a handler does not end the process: for a message, the peer that sent it is lost,
// with the exception's text; otherwise the exception is logged.
class EndpointHandler {
 public:
  virtual ~EndpointHandler() = default;

  // The header has arrived. `buffers` holds one entry per size. Entries whose bytes are here
  // already, in memory shared with the sender, have `data` and `owner` set. The handler may keep
  // them and write to them, which nobody else sees; it must copy them before it parses them,
  // because a hostile sender could still change them. On kAccept the handler has given every other
  // entry memory of at least its size, into which the bytes are read. onMessage() gets the same
  // `buffers`. If the connection breaks before the message is whole, the same message is announced
  // again with new buffers, and the former ones are void.
  virtual Disposition onHeader(std::int32_t from, std::span<const std::byte> header,
                               std::span<const std::uint64_t> sizes,
                               std::vector<OwnedBuffer>& buffers) = 0;

  // After onHeader() has accepted a message: what is told of its bytes as they come. Null: nothing.
  virtual std::shared_ptr<Arrivals> arrivals(std::int32_t /*from*/) { return nullptr; }

  // A message is longer than Limits::max_message_bytes, as `why` says. Its bytes are dropped as
  // they come (Limits::skip_too_large). `header` is valid during the call only.
  virtual void onTooLarge(std::int32_t /*from*/, std::span<const std::byte> /*header*/,
                          const Error& /*why*/) {}

  // A whole message. `header` is valid during the call only.
  virtual void onMessage(std::int32_t from, std::span<const std::byte> header,
                         std::vector<OwnedBuffer> buffers) = 0;

  // Once per life of a peer. Every later send to it fails with the same reason.
  virtual void onPeerLost(const PeerLoss& loss) = 0;

  // A peer was authenticated that addPeer() had not named (accept_unknown_peers), or that is the
  // next life of a lost one (reunite).
  virtual void onPeerJoined(const PeerInfo& /*peer*/) {}

  // A lost peer has connected again in the same life (EndpointOptions::reunite). Both sides have
  // heard of the loss, and a new session begins; nothing of the old one comes any more.
  virtual void onPeerReturned(const PeerInfo& /*peer*/) {}

  // A lost peer was reached again (EndpointOptions::reunite), but another process has this worker's
  // rank and name there: later sends to it fail with this reason.
  virtual void onDisplaced(const PeerLoss& /*loss*/) {}

  // A message that send() accepted could not be delivered, because its peer was lost first or
  // close() ran out of time. Either it was never written whole, or its connection broke before the
  // peer had acknowledged it, so that nobody can say whether the peer read it. `header` is what was
  // sent. Called before onPeerLost(), in the order of sending. A message that was written to a
  // connection that never broke is not reported, though the peer may not have read it.
  virtual void onSendFailed(std::int32_t /*to*/, std::span<const std::byte> /*header*/,
                            const Error& /*reason*/) {}
};

struct PeerStats {
  std::int32_t rank = -1;
  std::string name;
  std::string transport;         // "", "tcp" or "unix": the link in use
  std::uint64_t bytes_sent = 0;  // in all, shared memory included
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t queued_bytes = 0;      // not written, or not acknowledged
  std::uint64_t arena_bytes_sent = 0;  // the part of bytes_sent that went through shared memory
  std::uint64_t arena_fallbacks = 0;   // large buffers for which shared memory had no room
  std::uint64_t bulk_bytes_sent = 0;   // the part of bytes_sent that went over a bulk connection
  std::uint64_t reconnects = 0;        // connections made again after one broke
};

// Why a connection was refused before it became a peer's.
enum class RefusalCause : std::uint8_t {
  kKey,  // the proof did not fit: wrong key, or a replayed proof
  kGroup,
  kIdentity,  // wrong rank or name
  kVersion,
  kEncryption,   // one requires it and the other has it off, or only one has certificates
  kCertificate,  // not valid here or there, or not for its name
  kTimeout,      // no whole handshake within handshake_timeout
  kOverload,     // cut off in handshake, to let newer ones in (Limits)
  kUser,         // another user of this host, on the Unix socket
  kMalformed,    // not a hello
};
inline constexpr std::array kRefusalCauses{"key",        "group",       "identity", "version",
                                           "encryption", "certificate", "timeout",  "overload",
                                           "user",       "malformed"};
static_assert(kRefusalCauses.size() == static_cast<std::size_t>(RefusalCause::kMalformed) + 1);

struct EndpointStats {
  std::vector<PeerStats> peers;
  std::array<std::uint64_t, kRefusalCauses.size()> refused{};  // by RefusalCause

  std::uint64_t refusedBy(RefusalCause cause) const {
    return refused[static_cast<std::size_t>(cause)];
  }
};

class Endpoint {
 public:
  // Listens and starts the loop thread. `handler` must outlive close().
  static Result<std::unique_ptr<Endpoint>> create(EndpointOptions options,
                                                  EndpointHandler& handler);
  virtual ~Endpoint() = default;  // closes, if close() was not called

  // The text that peers need to reach this endpoint; opaque, printable, under 512 bytes, e.g.
  // "weft1;tcp=10.0.0.5:41233;unix=weft-3f2a…;host=<boot id>-<net namespace>".
  virtual const std::string& address() const = 0;

  // Makes a peer known. A peer that is known with the same name and address stays as it is. Another
  // address means a new life if onPeerLost() has told of the old one, else an error. For a peer
  // that joined by itself (onPeerJoined) this sets the address. A peer may connect before it is
  // named here: its connection is held, unread, for up to connect_timeout.
  virtual Error addPeer(const PeerInfo& peer) = 0;
  // Sets where a peer that joined by itself listens, as it says over its connection. Does nothing
  // for an unknown rank.
  virtual void setPeerAddress(std::int32_t rank, const std::string& address) = 0;
  // Says goodbye to a peer, closes its link and forgets it. Does nothing for an unknown rank.
  virtual void removePeer(std::int32_t rank) = 0;
  // Gives a peer up: cuts its connection now, and drops what is queued for it or half read.
  // onPeerLost() tells `reason`. Does nothing for a peer that is unknown or lost.
  virtual void losePeer(std::int32_t rank, Error reason) = 0;

  // Sends a message, and connects first if need be. Returns once the message is written or queued;
  // its buffers stay owned until the peer has acknowledged it. The calling thread writes it if
  // nothing is queued before it. If more than max_queued_bytes are queued to the peer or not
  // acknowledged by it, the calling thread waits for room, at most `wait`; the loop thread never
  // waits. A message whose bytes are not all there (Message::filling) is written as they come, and
  // the calling thread waits for them. An error means that nothing was or will be delivered.
  virtual Error send(std::int32_t to, Message message,
                     std::chrono::milliseconds wait = std::chrono::milliseconds(30000)) = 0;

  // Runs `task` on the loop thread after `delay`. close() drops it silently.
  virtual void runAfter(std::chrono::milliseconds delay, std::function<void()> task) = 0;
  virtual bool onLoopThread() const noexcept = 0;

  // Makes the calling thread the loop thread until `done()`, so that it reads what it waits for
  // itself. It must hold no lock that a handler takes. Another thread that makes `done()` true
  // calls wakeDriver() afterwards. `spin`: the thread's own.
  virtual Driven drive(Driver kind, const std::function<bool()>& done, Deadline deadline,
                       AdaptiveSpin& spin) = 0;
  virtual void wakeDriver(Driver kind) = 0;

  virtual EndpointStats stats() const = 0;

  // Says goodbye to every peer, writes what is queued for at most `linger`, then stops the loop
  // thread and joins it. The handler is not called after it returns. Idempotent. Not from the loop
  // thread.
  virtual void close(std::chrono::milliseconds linger = std::chrono::milliseconds(2000)) = 0;
};

}  // namespace weft::transport
