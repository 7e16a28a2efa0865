// Endpoint: a process's place in a group of processes that send each other
// messages. The public face of transport/.
//
// It listens, knows its peers by rank, connects to one when the first message
// for it is sent (no full mesh at start), authenticates both ways before anything
// but a fixed-size hello is read, and tells once when a peer is lost, and why.
//
// Threads. The endpoint has one loop thread at a time, its own or one that waits in drive(), and,
// once a bulk connection is made for large messages (BulkConnection), another that only moves
// bytes. send(), addPeer(), removePeer(), stats(), drive() and close() may be called from any
// thread. Handler methods are called on the loop thread, one at a time, with no lock held; they
// must not block.
// They may call send(), addPeer(), removePeer() and runAfter(); never close(). A bad_alloc or other
// exception of onHeader loses that peer; the other methods must not throw.
//
// Order. Messages to one peer arrive in the order in which send() was entered by
// one thread; messages of different threads interleave whole.
//
// Broken connections. As long as the peer lives, a connection that breaks is made again, and all
// messages arrive once and in order; it only takes longer. The peer is lost if the connection is
// not made again within reconnect_timeout, or if nothing listens at the peer's address any more.
//
// Failure. Every function that can fail returns an Error. A peer that is lost stays
// lost: later sends fail at once with the same reason, until addPeer() names a new
// life (another address) of it, or onPeerReturned() tells that it is back. In a child that was
// forked afterwards every function fails at once, and nothing of the parent's is touched.
#pragma once

#include <chrono>
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

// What to do with a message whose lengths are known and whose buffers are still
// on the wire.
enum class Disposition : std::uint8_t {
  kAccept,   // read the buffers into the memory given
  kDiscard,  // read past them, taking no memory; the message is not delivered
  kRefuse,   // the header is not this application's: close the link, the peer is lost
};

// An exception of a handler does not end the process: for a message, the peer that sent it is lost,
// with the exception's text; otherwise the exception is logged.
class EndpointHandler {
 public:
  virtual ~EndpointHandler() = default;

  // The header has arrived. `buffers` holds one entry per size. Those whose bytes are here
  // already, in memory shared with the sender, have `data` and `owner` set: the handler may
  // keep and write to them (nobody else sees that), and whoever parses them copies them first,
  // because a hostile sender could still change them. On kAccept the handler has given every other
  // entry memory of at least its size; the bytes are read straight into it. `buffers` is
  // handed back in onMessage just as it was given. When the connection breaks before the message
  // is whole, the same message is announced once more, with new buffers; the former ones are void.
  virtual Disposition onHeader(std::int32_t from, std::span<const std::byte> header,
                               std::span<const std::uint64_t> sizes,
                               std::vector<OwnedBuffer>& buffers) = 0;

  // After onHeader() has accepted a message: who is told of its bytes as they come. Null: nobody.
  virtual std::shared_ptr<Arrivals> arrivals(std::int32_t /*from*/) { return nullptr; }

  // A message is longer than Limits::max_message_bytes allows, as `why` says: its bytes are dropped
  // as they come (Limits::skip_too_large). `header` is valid during the call only.
  virtual void onTooLarge(std::int32_t /*from*/, std::span<const std::byte> /*header*/,
                          const Error& /*why*/) {}

  // A whole message. `header` is valid during the call only.
  virtual void onMessage(std::int32_t from, std::span<const std::byte> header,
                         std::vector<OwnedBuffer> buffers) = 0;

  // Once per life of a peer. Every later send to it fails with the same reason.
  virtual void onPeerLost(const PeerLoss& loss) = 0;

  // A peer that addPeer() had not named was authenticated (accept_unknown_peers), or the next life
  // of one that is lost (accept_successors).
  virtual void onPeerJoined(const PeerInfo& /*peer*/) {}

  // A peer that was lost has been met again in the same life (EndpointOptions::reunite): both have
  // heard of the loss, and a new session begins. Nothing of the old one comes any more.
  virtual void onPeerReturned(const PeerInfo& /*peer*/) {}

  // A peer that was lost has been met again (EndpointOptions::reunite), and another process has
  // this worker's rank and name there: later sends to it fail with this reason.
  virtual void onDisplaced(const PeerLoss& /*loss*/) {}

  // A message accepted by send() could not be delivered, because its peer was lost first or
  // close() ran out of time: it was never written (whole), or its connection broke before the
  // peer had acknowledged it, so that nobody can say whether it was read. `header` is what was
  // sent. Called before onPeerLost, in the order of sending. Default: nothing. What was written to
  // a connection that stood to the end is not reported, though the peer may not have read it.
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
  std::uint64_t arena_bytes_sent = 0;  // those of bytes_sent that went through shared memory
  std::uint64_t arena_fallbacks = 0;   // large buffers that went another way for lack of room there
  std::uint64_t bulk_bytes_sent = 0;   // those of bytes_sent that went over a second connection
  std::uint64_t reconnects = 0;        // connections made again after one broke
};

struct EndpointStats {
  std::vector<PeerStats> peers;
  // Connections refused before they became a peer's, by cause.
  std::uint64_t refused_key = 0;  // the proof did not fit: wrong key, or a replayed proof
  std::uint64_t refused_group = 0;
  std::uint64_t refused_identity = 0;  // wrong rank or name
  std::uint64_t refused_version = 0;
  std::uint64_t refused_encryption = 0;   // one side requires it and the other has it off, or one
                                          // has certificates and the other has not
  std::uint64_t refused_certificate = 0;  // not for its name, or TLS failed
  std::uint64_t refused_replay = 0;       // a hello with a nonce seen before
  std::uint64_t refused_timeout = 0;      // no whole handshake within handshake_timeout
  std::uint64_t refused_overload = 0;     // cut off in handshake, to let newer ones in (Limits)
  std::uint64_t refused_user = 0;         // another user of this host, on the Unix socket
  std::uint64_t refused_malformed = 0;    // not a hello
};

class Endpoint {
 public:
  // Listens and starts the loop thread. `handler` must outlive close().
  static Result<std::unique_ptr<Endpoint>> create(EndpointOptions options,
                                                  EndpointHandler& handler);
  virtual ~Endpoint() = default;  // closes, if close() was not called

  // Text that peers need to reach this endpoint; opaque, printable, under 512 bytes,
  // e.g. "weft1;tcp=10.0.0.5:41233;unix=weft-3f2a…;host=<boot id>-<net namespace>".
  virtual const std::string& address() const = 0;

  // Makes a peer known. Naming one that is known with the same name and address
  // changes nothing. With another address: a new life, if onPeerLost() has told of the old one,
  // else an error. For a peer that joined by itself (onPeerJoined) this sets the address. A peer
  // may connect before it is named here: it is held, unread, for up to connect_timeout.
  virtual Error addPeer(const PeerInfo& peer) = 0;
  // Where a peer that joined by itself listens, as it says itself over its connection. Unknown
  // rank: no-op.
  virtual void setPeerAddress(std::int32_t rank, const std::string& address) = 0;
  // Closes its link in order (goodbye) and forgets it. Unknown rank: no-op.
  virtual void removePeer(std::int32_t rank) = 0;
  // Cuts its connection now, with all that is queued for it or half read; onPeerLost() tells
  // `reason`. For an application that gives the peer up. Unknown or lost: no-op.
  virtual void losePeer(std::int32_t rank, Error reason) = 0;

  // Sends, connecting first if need be. Returns once the message is written or
  // queued; its buffers stay owned until the peer has acknowledged it. Writes from the calling
  // thread when nothing is queued before it. When more than max_queued_bytes are queued to the peer
  // or not acknowledged by it, a caller thread waits for room, at most `wait`; the loop
  // thread never waits. A message whose bytes are not all there (Message::filling) is written as
  // they come; the calling thread waits for them. An error here means that nothing was or will be
  // delivered.
  virtual Error send(std::int32_t to, Message message,
                     std::chrono::milliseconds wait = std::chrono::milliseconds(30000)) = 0;

  // Runs `task` on the loop thread after `delay`; dropped silently by close().
  virtual void runAfter(std::chrono::milliseconds delay, std::function<void()> task) = 0;
  virtual bool onLoopThread() const noexcept = 0;

  // The calling thread is the loop thread until `done()`, so that it reads itself what it waits
  // for. It holds no lock that a handler takes. Another thread that makes `done()` true calls
  // wakeDriver() afterwards. `spin`: the thread's own.
  virtual Driven drive(Driver kind, const std::function<bool()>& done, Deadline deadline,
                       AdaptiveSpin& spin) = 0;
  virtual void wakeDriver(Driver kind) = 0;

  virtual EndpointStats stats() const = 0;

  // Says goodbye to every peer, writes what is queued for at most `linger`, then
  // stops the loop thread and joins it. No handler call comes after it returns.
  // Idempotent. Not from the loop thread.
  virtual void close(std::chrono::milliseconds linger = std::chrono::milliseconds(2000)) = 0;
};

}  // namespace weft::transport
