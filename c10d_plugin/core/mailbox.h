// Mailbox: tagged messages between two ranks of a group, over Weft's transport. What send(),
// recv() and the algorithms between hosts are made of. Knows nothing of torch.
//
// A message goes to the receive that was posted first for its sender and tag, or for any sender
// and its tag; it waits when there is none. Messages of one sender and tag are received in the
// order they were sent.
//
// Threads: any thread may call any member. Completions are called on the transport's loop thread
// or on the calling thread, never with a lock held, exactly once; they must not block.
// Failure: a lost peer fails the receives that only it could answer, with its rank and reason; a
// receive from anyone fails when any peer is lost. After abort() all fails with that reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "transport/base/buffer.h"
#include "transport/base/error.h"

namespace weft::collectives {

// The upper half, the tags with the top bit set, belongs to the algorithms of net/; what comes from
// users lies below.
using Tag = std::uint64_t;
inline constexpr int kAnyRank = -1;

// What sender and receiver must agree on besides the size, in words that only they understand:
// the collectives put there which operation a message belongs to.
struct Label {
  std::array<std::uint64_t, 3> words{};
  bool operator==(const Label&) const = default;
};

class Mailbox {
 public:
  struct Received {
    // kInvalidArgument: the message had another size than the memory, or another label.
    transport::Error error;
    int from = -1;
    std::size_t size = 0;  // of the message
    Label label;           // of the message
  };
  using OnSent = std::function<void(const transport::Error&)>;
  using OnReceived = std::function<void(const Received&)>;
  using Ticket = std::uint64_t;

  virtual ~Mailbox() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  // `data` is kept by its owner until `done`, which means "the bytes may be reused", not "arrived".
  // To the own rank too. The ticket is for cancel(); 0: the bytes are the mailbox's own by now, and
  // the message arrives as it is, whatever becomes of `data`.
  virtual Ticket send(int to, Tag tag, transport::OwnedBuffer data, OnSent done,
                      const Label& label = {}) = 0;
  // `into` is kept by its owner until `done`. The message must have exactly its size and this
  // label: another one fails this receive, writes nothing, and is consumed.
  virtual Ticket receive(int from, Tag tag, transport::OwnedBuffer into, OnReceived done,
                         const Label& label = {}) = 0;
  // Takes back a posted receive, or a message whose bytes are still all here: true when its `done`
  // will not be called any more. A receive that waits for such a message fails, with `why`.
  virtual bool cancel(Ticket ticket, const transport::Error& why) = 0;
  // Gives a rank up: what is under way to and from it ends now, and all that comes later fails with
  // `why`. For a message that must not arrive any more and cannot be taken back.
  virtual void giveUp(int rank, transport::Error why) = 0;

  // Fails all that waits here and all that comes later, and tells the peers that this rank talked
  // to: what they expect from it fails with the same reason. Completions of messages whose bytes
  // are just being read or written come a little later, but come. The first reason stays.
  virtual void abort(transport::Error reason) = 0;
};

}  // namespace weft::collectives
