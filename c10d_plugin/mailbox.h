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

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "transport/buffer.h"
#include "transport/error.h"

namespace weft::collectives {

using Tag = std::uint64_t;
inline constexpr int kAnyRank = -1;

class Mailbox {
 public:
  struct Received {
    transport::Error error;  // kInvalidArgument: the message had another size than the memory
    int from = -1;
    std::size_t size = 0;  // of the message
  };
  using OnSent = std::function<void(const transport::Error&)>;
  using OnReceived = std::function<void(const Received&)>;
  using Ticket = std::uint64_t;

  virtual ~Mailbox() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  // `data` is kept by its owner until `done`, which means "the bytes may be reused", not "arrived".
  // To the own rank too.
  virtual void send(int to, Tag tag, transport::OwnedBuffer data, OnSent done) = 0;
  // `into` is kept by its owner until `done`. The message must have exactly its size: another one
  // fails this receive, and is consumed.
  virtual Ticket receive(int from, Tag tag, transport::OwnedBuffer into, OnReceived done) = 0;
  // Takes a posted receive back: true when its `done` will not be called any more.
  virtual bool cancel(Ticket ticket) = 0;

  virtual void abort(transport::Error reason) = 0;
};

}  // namespace weft::collectives
