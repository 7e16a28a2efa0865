// PostedReceive: a receive that waits for its message.
//
// Threads: complete() and deliver() run its completion: call one of them, once, without the
// mailbox's lock.
#pragma once

#include <cstdint>
#include <utility>

#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

struct PostedReceive {
  Mailbox::Ticket ticket = 0;
  int from = kAnyRank;
  Tag tag = 0;
  Label label;
  transport::OwnedBuffer into;
  Mailbox::OnReceived done;

  bool fits(std::uint64_t size, const Label& sent) const {
    return into.size == size && label == sent;
  }
  void complete(transport::Error error, int sender, std::uint64_t size, const Label& sent) const {
    if (done) done({std::move(error), sender, size, sent});
  }
  // A message has come for it: it is over, with an error where that does not fit.
  void deliver(int sender, std::uint64_t size, const Label& sent) const;
};

}  // namespace weft::collectives
