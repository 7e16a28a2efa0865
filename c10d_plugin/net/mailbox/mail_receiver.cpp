#include "c10d_plugin/net/mailbox/mail_receiver.h"

#include <iterator>
#include <stdexcept>
#include <utility>

#include "c10d_plugin/net/mailbox/buffers.h"

namespace weft::collectives {

using transport::Disposition;
using transport::Error;
using transport::OwnedBuffer;
using MessageState = UnexpectedMessage::State;

// --- receives ---

Mailbox::Ticket MailReceiver::receive(int from, Tag tag, OwnedBuffer into, Mailbox::OnReceived done,
                                      const Label& label) {
  std::unique_lock<std::mutex> lock(state_.mutex);
  PostedReceive receive{++state_.tickets, from, tag, label, std::move(into), std::move(done)};
  const Mailbox::Ticket ticket = receive.ticket;
  Error error = state_.phase == MailboxState::Phase::kOpen ? Error::ok() : state_.reason;
  if (!error) {
    if (std::shared_ptr<UnexpectedMessage> message = matcher_.take(from, tag)) {
      take(std::move(message), std::move(receive), lock);
      return ticket;
    }
    error = state_.whyNotFrom(from);
  }
  if (error) {
    lock.unlock();
    receive.complete(std::move(error), from, 0, {});
    return ticket;
  }
  matcher_.post(std::move(receive));
  const std::vector<int> unconnected = takeUnconnected(from);
  lock.unlock();
  for (const int rank : unconnected)
    state_.tell(rank, {MailKind::kHello, 0, 0, 0, {}, {}});
  return ticket;
}

// The ranks to connect to, for which a receive from `from` waits: the end of a connection is how a
// death is noticed. With the lock.
std::vector<int> MailReceiver::takeUnconnected(int from) {
  std::vector<int> ranks;
  for (int rank = 0; rank < state_.size(); ++rank) {
    MailboxPeer& peer = state_.peer(rank);
    if (rank == state_.rank || peer.talked || peer.presence != MailboxPeer::Presence::kHere ||
        (from != kAnyRank && from != rank))
      continue;
    peer.talked = true;
    ranks.push_back(rank);
  }
  return ranks;
}

// Gives a message that came before its receive to it. Releases the lock.
void MailReceiver::take(std::shared_ptr<UnexpectedMessage> message, PostedReceive receive,
                        std::unique_lock<std::mutex>& lock) {
  const int from = message->from;
  const bool fitting = receive.fits(message->size, message->label);
  switch (message->state) {
    case MessageState::kAnnounced:
      return rendezvous_.answer(*message, receive, lock);
    case MessageState::kWhole: {
      const std::uint64_t credit = consume(from, message->size);
      lock.unlock();
      if (fitting) copyInto(receive.into, message->bytes);
      message->bytes = {};
      grant(from, credit);
      break;
    }
    default:  // kArriving, for the matcher has no others: onData() goes on with it
      if (fitting) {
        message->state = MessageState::kClaimed;
        message->claimed_by = std::move(receive);
        return;
      }
      message->state = MessageState::kDropped;
      lock.unlock();
      break;
  }
  receive.deliver(from, message->size, message->label);
}

bool MailReceiver::cancel(Mailbox::Ticket ticket) {
  std::optional<PostedReceive> receive;  // released without the lock
  const std::lock_guard<std::mutex> lock(state_.mutex);
  receive = matcher_.cancel(ticket);
  return receive.has_value();
}

Error MailReceiver::reached(const Mailbox::OpStage& stage) {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  // In a group of one no message says so.
  if (state_.size() == 1 && state_.phase != MailboxState::Phase::kOpen) return state_.reason;
  state_.progress.note(stage);
  const UnexpectedMessage* const unwanted = matcher_.findUnexpected(
      OpProgress::lowest(stage.last), stage.last, [&](const UnexpectedMessage& message) {
        return state_.progress.whereUnwanted(message.tag, message.label) != nullptr;
      });
  if (unwanted == nullptr) return Error::ok();
  return state_.whyUnwanted(unwanted->from, unwanted->label, stage);
}

// --- messages with bytes ---

Disposition MailReceiver::onDataHeader(int from, const MailHeader& header, std::uint64_t size,
                                       OwnedBuffer& buffer) {
  const ArrivingMessage& before = state_.peer(from).arriving;
  const PostedReceive* const receive = before.receive ? &*before.receive : nullptr;
  const UnexpectedMessage* const unexpected = before.unexpected.get();
  if (receive == nullptr && unexpected == nullptr) {
    return header.kind == MailKind::kEager ? onEagerHeader(from, header, size, buffer)
                                           : rendezvous_.onHeader(from, header, size, buffer);
  }
  // The connection broke before this message was whole, and the endpoint sends it again. Its
  // receive is known; only where its bytes go is asked again.
  const std::uint64_t expected = receive != nullptr ? receive->into.size : unexpected->size;
  if (expected != size) return Disposition::kRefuse;
  const bool in_shared_memory = buffer.data != nullptr;
  if (!in_shared_memory) buffer = receive != nullptr ? receive->into : newBuffer(size);
  return Disposition::kAccept;
}

Disposition MailReceiver::onEagerHeader(int from, const MailHeader& header, std::uint64_t size,
                                        OwnedBuffer& buffer) {
  MailboxPeer& peer = state_.peer(from);
  std::unique_lock<std::mutex> lock(state_.mutex);
  std::optional<PostedReceive> receive = matcher_.match(from, header.tag);
  if (receive && !receive->fits(size, header.label)) {
    const std::uint64_t credit = consume(from, size);
    lock.unlock();
    grant(from, credit);
    receive->deliver(from, size, header.label);
    return Disposition::kDiscard;
  }
  const bool in_shared_memory = buffer.data != nullptr;
  if (receive) {
    if (!in_shared_memory) buffer = receive->into;
    peer.arriving.receive = std::move(receive);
    return Disposition::kAccept;
  }
  if (state_.abortIfUnwanted(from, header, lock)) return Disposition::kDiscard;
  if (!peer.window.keep(CreditWindow::costOf(size))) {
    // Ends the peer: the endpoint puts the text into the reason.
    throw std::length_error("more than " + std::to_string(peer.window.window()) +
                            " bytes of messages for which no receive is posted; it does not keep "
                            "to this group's limits");
  }
  auto message = std::make_shared<UnexpectedMessage>(from, header.tag, header.label, size);
  if (!in_shared_memory) buffer = newBuffer(size);
  peer.arriving.unexpected = message;
  matcher_.keep(std::move(message));
  return Disposition::kAccept;
}

void MailReceiver::onData(int from, const MailHeader& header, OwnedBuffer bytes) {
  ArrivingMessage arrived = std::exchange(state_.peer(from).arriving, {});
  const std::uint64_t size = bytes.size;
  std::optional<PostedReceive> receive = std::move(arrived.receive);
  std::unique_lock<std::mutex> lock(state_.mutex);
  if (arrived.unexpected != nullptr) {
    UnexpectedMessage& message = *arrived.unexpected;
    const MessageState before = std::exchange(message.state, MessageState::kWhole);
    if (before == MessageState::kArriving) {
      message.bytes = std::move(bytes);
      return;
    }
    receive = std::exchange(message.claimed_by, std::nullopt);
  }
  // The sender's window has room for an eager message again.
  const std::uint64_t credit = header.kind == MailKind::kEager ? consume(from, size) : 0;
  lock.unlock();
  if (receive) copyInto(receive->into, bytes);
  bytes = {};
  grant(from, credit);
  if (receive) receive->complete(Error::ok(), from, size, receive->label);
}

// An eager message has found its receive. Returns the credit to grant. With the lock.
std::uint64_t MailReceiver::consume(int from, std::uint64_t size) {
  MailboxPeer& peer = state_.peer(from);
  if (peer.presence != MailboxPeer::Presence::kHere || state_.phase != MailboxState::Phase::kOpen)
    return 0;
  return peer.window.consume(CreditWindow::costOf(size));
}

void MailReceiver::grant(int to, std::uint64_t credit) const {
  if (credit > 0) state_.tell(to, {MailKind::kCredit, 0, 0, credit, {}, {}});
}

// --- ends ---

std::vector<PostedReceive> MailReceiver::takeFrom(int from) {
  std::vector<PostedReceive> receives = matcher_.takePosted(from);
  RendezvousReceiver::takeCleared(state_.peer(from), receives);
  matcher_.forgetUnfinished(from);
  if (state_.whyNotFrom(kAnyRank)) {
    std::vector<PostedReceive> any = matcher_.takePosted(kAnyRank);
    std::move(any.begin(), any.end(), std::back_inserter(receives));
  }
  return receives;
}

std::vector<PostedReceive> MailReceiver::takeAll() {
  std::vector<PostedReceive> receives = matcher_.takeAllPosted();
  for (MailboxPeer& peer : state_.peers)
    RendezvousReceiver::takeCleared(peer, receives);
  matcher_.clear();
  return receives;
}

std::optional<PostedReceive> MailReceiver::takeArriving(int from) {
  ArrivingMessage cut = std::exchange(state_.peer(from).arriving, {});
  if (cut.unexpected == nullptr) return std::move(cut.receive);
  const std::lock_guard<std::mutex> lock(state_.mutex);
  return std::exchange(cut.unexpected->claimed_by, std::nullopt);
}

}  // namespace weft::collectives
