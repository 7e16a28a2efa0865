#include "c10d_plugin/net/mailbox/mailbox_state.h"

#include <utility>

#include "c10d_plugin/core/op_fingerprint.h"

namespace weft::collectives {

using transport::Error;
using transport::ErrorCode;

SendRequest::~SendRequest() {
  MailboxPeer& peer = state.peer(to);
  const bool cut_off = peer.broken.load() || (data.size > kCopied && peer.left.load());
  if (!error && transmitted && cut_off) {
    const std::lock_guard<std::mutex> lock(state.mutex);
    error = peer.reason;
  }
  if (transmitted) peer.in_transit.fetch_sub(1);
  data.owner.reset();
  if (done) done(error);
}

Error MailboxState::whyNotFrom(int from) const {
  using Presence = MailboxPeer::Presence;
  if (from != kAnyRank)
    return peer(from).presence == Presence::kHere ? Error::ok() : peer(from).reason;
  // A rank that left owes no message; but one must be here to send any.
  const MailboxPeer* left = nullptr;
  bool any_here = false;
  for (int other = 0; other < size(); ++other) {
    const MailboxPeer& candidate = peer(other);
    if (candidate.presence == Presence::kLost) return candidate.reason;
    if (candidate.presence == Presence::kLeft) left = &candidate;
    any_here = any_here || (other != rank && candidate.presence == Presence::kHere);
  }
  return !any_here && left != nullptr ? left->reason : Error::ok();
}

bool MailboxState::abortIfUnwanted(int from, const MailHeader& header,
                                   std::unique_lock<std::mutex>& lock) {
  const Mailbox::OpStage* const stage = progress.whereUnwanted(header.tag, header.label);
  if (stage == nullptr) return false;
  Error why = whyUnwanted(from, header.label, *stage);
  lock.unlock();
  abort(std::move(why));
  return true;
}

Error MailboxState::whyUnwanted(int from, const Label& sent, const Mailbox::OpStage& stage) const {
  return {ErrorCode::kInvalidArgument, differentCalls(from, sent, rank, stage.label)};
}

void MailboxState::tell(int to, const MailHeader& header) const {
  if (to == rank) return own(header, {});
  (void)!endpoint->send(to, {encode(header), {}});
}

}  // namespace weft::collectives
