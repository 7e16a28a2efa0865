#include "c10d_plugin/net/mailbox/abort_notice.h"

#include <chrono>
#include <utility>
#include <vector>

namespace weft::collectives {

using transport::Error;

namespace {

// How long after abort() messages that are being read or written may take to end by themselves.
// Then their connections are cut.
constexpr std::chrono::milliseconds kAbortGrace{100};

}  // namespace

void AbortNotice::begin(Error reason) {
  // On the loop thread, where a send never waits for room.
  state_.endpoint->runAfter(std::chrono::milliseconds(0), [this] { tellAll(); });
  state_.endpoint->runAfter(kAbortGrace,
                            [this, reason = std::move(reason)] { cutConnections(reason); });
}

// A connection that has just been made may still have its first message before it.
void AbortNotice::tellAll() {
  std::vector<int> connected;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    for (int rank = 0; rank < state_.size(); ++rank) {
      if (state_.peer(rank).talked) connected.push_back(rank);
    }
  }
  for (const transport::PeerStats& peer : state_.endpoint->stats().peers) {
    if (!peer.transport.empty()) connected.push_back(peer.rank);
  }
  for (const int rank : connected)
    tell(rank);
}

void AbortNotice::tell(int to) {
  MailHeader header{MailKind::kAbort, 0, 0, 0, {}, {}};
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    MailboxPeer& peer = state_.peer(to);
    if (peer.presence != MailboxPeer::Presence::kHere ||
        state_.phase != MailboxState::Phase::kAborted || peer.told_of_abort)
      return;
    header.id = static_cast<std::uint64_t>(state_.reason.code());
    header.text = state_.reason.text();
  }
  state_.tell(to, header);
  // Not before: close(), on another thread, would not tell, and close the endpoint to this message.
  // A rank that two threads tell hears the second as one more message of a rank that is gone.
  const std::lock_guard<std::mutex> lock(state_.mutex);
  state_.peer(to).told_of_abort = true;
}

void AbortNotice::cutConnections(const Error& reason) {
  for (int rank = 0; rank < state_.size(); ++rank) {
    const MailboxPeer& peer = state_.peer(rank);
    if (peer.in_transit.load() > 0 || peer.arriving.any()) state_.endpoint->losePeer(rank, reason);
  }
}

}  // namespace weft::collectives
