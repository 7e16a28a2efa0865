// Mailbox: tagged messages between two ranks of a group, over Weft's transport. send(), recv() and
// the algorithms between hosts use it. Knows nothing of torch.
//
// A message goes to the receive that was posted first for its sender and tag, or for any sender
// and its tag; it waits when there is none. Messages of one sender and tag are received in the
// order they were sent. A message to the rank itself stays where it is until a receive takes it,
// and is copied once.
//
// Threads: any thread may call any member. Completions are called on the transport's loop thread
// or on the calling thread, never with a lock held, exactly once; they must not block.
// Ranks are those of the group, or kAnyRank where a receive takes any: the caller has checked them.
// Failure: a lost peer fails the receives that only it could answer, with its rank and reason; a
// receive from anyone fails when any peer is lost. After abort() all fails with that reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "transport/base/buffer.h"
#include "transport/base/error.h"

namespace weft::collectives {

// Tags from kCollectiveTags on belong to the algorithms of net/; users' tags are below.
using Tag = std::uint64_t;
inline constexpr Tag kCollectiveTags = Tag{1} << 63U;
// Tags that are equal from this bit on are one channel. Its operations use them in ascending order,
// and begin again at the lowest after the highest.
inline constexpr unsigned kChannelShift = 56;
inline constexpr int kAnyRank = -1;

// What sender and receiver must agree on besides the size: the OpFingerprint of a collective. The
// mailbox compares it, and describes it in an error.
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
  // The ticket is for cancel(); 0: the mailbox has a copy of the bytes, and the message cannot be
  // cancelled.
  virtual Ticket send(int to, Tag tag, transport::OwnedBuffer data, OnSent done,
                      const Label& label = {}) = 0;
  // `into` is kept by its owner until `done`. The message must have exactly its size and this
  // label: another one fails this receive, writes nothing, and is consumed.
  virtual Ticket receive(int from, Tag tag, transport::OwnedBuffer into, OnReceived done,
                         const Label& label = {}) = 0;
  // Cancels a posted receive, or a message whose bytes are all still here. True: its `done` will
  // not be called. A receive that waits for such a message fails with `why`. False: the message of
  // that receive is announced or arriving, this one is being sent, it has ended, or the ticket is
  // 0.
  virtual bool cancel(Ticket ticket, const transport::Error& why) = 0;
  // Disconnects a rank: all messages to and from it fail with `why`, now and later. For a message
  // that must not arrive any more and cannot be cancelled.
  virtual void giveUp(int rank, transport::Error why) = 0;

  // A collective operation: the tags that are its own, and how far it has come here.
  struct OpStage {
    Tag first = 0;
    Tag last = 0;
    Label label;        // of all its messages
    bool over = false;  // it has received all of its messages
  };
  // Tells the mailbox how far the operations of a channel have come. An error (kInvalidArgument): a
  // message is here that no operation takes, because its sender called another one. If such a
  // message comes later, the mailbox aborts itself with that error. In a group of one, whose
  // operations have no messages: why the mailbox was aborted or closed.
  virtual transport::Error reached(const OpStage& stage) = 0;

  // The ranks, ascending, that owe a collective a message which has not been announced yet.
  virtual std::vector<int> awaited() const = 0;

  // Fails all requests, waiting and later ones, and tells the peers that this rank is connected to:
  // what they expect from it fails with the same reason. The requests whose bytes are being read or
  // written complete a little later. The first reason stays.
  virtual void abort(transport::Error reason) = 0;
};

}  // namespace weft::collectives
