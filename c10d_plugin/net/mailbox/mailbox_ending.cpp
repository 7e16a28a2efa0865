// How a mailbox ends: a peer that is lost, abort(), close().
#include <iterator>
#include <utility>

#include "c10d_plugin/net/mailbox/endpoint_mailbox_impl.h"

namespace weft::collectives {

using transport::Error;
using transport::ErrorCode;

namespace {

// After abort(): how long messages that are just being read or written may take to end by
// themselves, before their connections are cut.
constexpr std::chrono::milliseconds kAbortGrace{100};

// All have joined: who can't be reached now is gone, however that shows.
Error asLoss(const Error& reason) {
  if (reason.code() != ErrorCode::kConnectFailed) return reason;
  return {ErrorCode::kPeerLost, reason.text()};
}

}  // namespace

void EndpointMailboxImpl::onSendFailed(std::int32_t to, std::span<const std::byte>,
                                       const Error& reason) {
  Peer& peer = peers_[static_cast<std::size_t>(to)];
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!peer.reason) peer.reason = asLoss(reason);
  peer.broken.store(true);
}

void EndpointMailboxImpl::onPeerLost(const transport::PeerLoss& loss) {
  const Error reason = asLoss(loss.reason);
  lose(loss.rank, reason.code() == ErrorCode::kPeerClosed, reason);
  // Nothing more is read into its receive's memory.
  Arriving cut = std::exchange(peers_[static_cast<std::size_t>(loss.rank)].arriving, {});
  std::optional<PostedReceive> receive = std::move(cut.receive);
  if (cut.mail != nullptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    receive = std::exchange(cut.mail->taker, std::nullopt);
  }
  if (receive) complete(*receive, reason, loss.rank, 0, {});
}

// Nothing more comes from this rank, or goes to it.
void EndpointMailboxImpl::lose(int rank, bool in_order, const Error& reason) {
  Failures failures;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    peer.broken.store(true);
    if (peer.gone) return;
    peer.gone = true;
    peer.left = in_order;
    if (!peer.reason || !in_order) peer.reason = reason;
    failures.receives = matcher_.takePosted(rank);
    for (auto& [id, receive] : peer.cleared)
      failures.receives.push_back(std::move(receive));
    for (auto& [id, message] : peer.announced)
      failures.sends.push_back(std::move(message));
    peer.cleared.clear();
    peer.announced.clear();
    matcher_.forgetUnfinished(rank);
    if (whyNotFrom(kAnyRank)) {
      std::vector<PostedReceive> any = matcher_.takePosted(kAnyRank);
      std::move(any.begin(), any.end(), std::back_inserter(failures.receives));
    }
  }
  fail(std::move(failures), reason);
}

void EndpointMailboxImpl::fail(Failures failures, const Error& reason) {
  for (const std::shared_ptr<Outgoing>& message : failures.sends)
    message->error_ = reason;
  failures.sends.clear();
  for (const PostedReceive& receive : failures.receives)
    complete(receive, reason, receive.from, 0, {});
}

// All that waits and whose memory nobody is reading or writing. Called with the lock.
EndpointMailboxImpl::Failures EndpointMailboxImpl::takeEverything() {
  Failures failures;
  failures.receives = matcher_.takeAllPosted();
  for (Peer& peer : peers_) {
    for (auto& [id, receive] : peer.cleared)
      failures.receives.push_back(std::move(receive));
    for (auto& [id, message] : peer.announced)
      failures.sends.push_back(std::move(message));
    peer.cleared.clear();
    peer.announced.clear();
  }
  matcher_.clear();
  return failures;
}

bool EndpointMailboxImpl::end(State state, const Error& reason) {
  Failures failures;
  Error why = reason;
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    first = state_ == State::kOpen;
    if (first) reason_ = reason;
    why = reason_;
    if (state > state_) state_ = state;
    failures = takeEverything();
  }
  fail(std::move(failures), why);
  return first;
}

void EndpointMailboxImpl::abort(Error reason) {
  if (!end(State::kAborted, reason) || endpoint_ == nullptr) return;
  // From the loop thread, which never waits for room.
  endpoint_->runAfter(std::chrono::milliseconds(0), [this] {
    for (int rank = 0; rank < size(); ++rank) {
      bool talked = false;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        talked = peers_[static_cast<std::size_t>(rank)].talked;
      }
      if (talked) answerAborted(rank);
    }
  });
  endpoint_->runAfter(kAbortGrace, [this, reason] { cutOff(reason); });
}

void EndpointMailboxImpl::answerAborted(int to) {
  MailHeader header{MailKind::kAbort, 0, 0, 0, {}, {}};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(to)];
    if (peer.gone || state_ != State::kAborted || std::exchange(peer.told_of_abort, true)) return;
    header.id = static_cast<std::uint64_t>(reason_.code());
    header.text = reason_.text();
  }
  tell(to, header);
}

// Loop thread: whoever still reads or writes this rank's memory stops.
void EndpointMailboxImpl::cutOff(const Error& reason) {
  for (int rank = 0; rank < size(); ++rank) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (peer.under_way.load() > 0 || peer.arriving.receive || peer.arriving.mail != nullptr)
      endpoint_->losePeer(rank, reason);
  }
}

void EndpointMailboxImpl::close(std::chrono::milliseconds linger) {
  const std::lock_guard<std::mutex> only_one(close_mutex_);
  end(State::kClosed, {ErrorCode::kShutdown, "this group was closed"});
  if (endpoint_ == nullptr) return;
  endpoint_->close(linger);
  // The loop thread is gone: what it was reading is nobody's now.
  for (Peer& peer : peers_) {
    Arriving cut = std::exchange(peer.arriving, {});
    std::optional<PostedReceive> receive = std::move(cut.receive);
    if (cut.mail != nullptr) receive = std::exchange(cut.mail->taker, std::nullopt);
    if (receive) complete(*receive, reason_, receive->from, 0, {});
  }
}

}  // namespace weft::collectives
