#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"

#include <cstring>
#include <utility>

#include "c10d_plugin/net/mailbox/endpoint_mailbox_impl.h"

namespace weft::collectives {

using transport::Error;
using transport::ErrorCode;
using transport::OwnedBuffer;

namespace {

// Bytes of a message that is kept as a copy until it is acknowledged: to wait for that would take
// longer.
constexpr std::size_t kCopied = std::size_t{32} << 10;

void copyInto(const OwnedBuffer& into, const OwnedBuffer& from) {
  if (into.size > 0) std::memcpy(into.data, from.data, into.size);
}

OwnedBuffer copyOf(const OwnedBuffer& data) {
  if (data.size == 0) return {};
  const std::shared_ptr<std::byte[]> memory =
      std::make_unique_for_overwrite<std::byte[]>(data.size);
  OwnedBuffer copy{memory.get(), data.size, memory};
  copyInto(copy, data);
  return copy;
}

}  // namespace

EndpointMailboxImpl::EndpointMailboxImpl(const MailboxOptions& options)
    : rank_(options.rank),
      options_(options),
      hosts_(static_cast<std::size_t>(options.size)),
      peers_(static_cast<std::size_t>(options.size)) {}

EndpointMailboxImpl::~EndpointMailboxImpl() {
  close(std::chrono::milliseconds(2000));
  endpoint_.reset();
}

EndpointMailboxImpl::Outgoing::~Outgoing() {
  Peer& peer = box_.peers_[static_cast<std::size_t>(to_)];
  if (!error_ && under_way_ && peer.broken.load()) {
    const std::lock_guard<std::mutex> lock(box_.mutex_);
    error_ = peer.reason;
  }
  if (under_way_) peer.under_way.fetch_sub(1);
  data_.owner.reset();
  if (done_) done_(error_);
}

Error EndpointMailboxImpl::checkRank(int peer, const char* what) const {
  if (peer >= 0 && peer < size()) return Error::ok();
  return {ErrorCode::kInvalidArgument,
          std::string("cannot ") + what + " rank " + std::to_string(peer) +
              ": ranks of this group go from 0 to " + std::to_string(size() - 1)};
}

transport::EndpointStats EndpointMailboxImpl::stats() const {
  return endpoint_ == nullptr ? transport::EndpointStats() : endpoint_->stats();
}

// --- sending ---

Mailbox::Ticket EndpointMailboxImpl::send(int to, Tag tag, OwnedBuffer data, OnSent done,
                                          const Label& label) {
  if (Error error = checkRank(to, "send to")) {
    done(error);
    return 0;
  }
  if (to == rank_) {
    sendToSelf(tag, data, done, label);
    return 0;
  }
  MailHeader header{MailKind::kData, tag, 0, data.size, label, {}};
  const std::uint64_t cost = data.size + kPerMessage;
  const auto message = std::make_shared<Outgoing>(*this, to, std::move(data), std::move(done));
  Ticket ticket = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(to)];
    if (state_ != State::kOpen) {
      message->error_ = reason_;
    } else if (peer.gone) {
      message->error_ = peer.reason;
    } else if (cost <= peer.credit) {
      peer.credit -= cost;
    } else {
      header.kind = MailKind::kRequestToSend;
      header.id = tickets_ + 1;
      peer.announced.emplace(header.id, message);
    }
    ticket = ++tickets_;
    peer.talked = true;
  }
  if (message->error_) return 0;
  if (header.kind == MailKind::kRequestToSend) {
    tell(to, header);
    return ticket;
  }
  transmit(to, header, message);
  return header.size <= kCopied ? 0 : ticket;
}

void EndpointMailboxImpl::sendToSelf(Tag tag, const OwnedBuffer& data, const OnSent& done,
                                     const Label& label) {
  std::optional<PostedReceive> receive;
  Error error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kOpen) {
      error = reason_;
    } else if (receive = matcher_.match(rank_, tag); !receive) {
      // A copy, so that a send to oneself is done before the receive is posted.
      auto mail = std::make_shared<UnexpectedMessage>();
      mail->from = rank_;
      mail->tag = tag;
      mail->label = label;
      mail->size = data.size;
      mail->bytes = copyOf(data);
      mail->whole = true;
      matcher_.keep(std::move(mail));
    }
  }
  if (receive) {
    const bool fits = receive->into.size == data.size && receive->label == label;
    if (fits) copyInto(receive->into, data);
    complete(*receive,
             fits ? Error::ok()
                  : Error(ErrorCode::kInvalidArgument, mismatch(*receive, rank_, data.size, label)),
             rank_, data.size, label);
  }
  if (done) done(error);
}

// The endpoint keeps `message` until its bytes may be used again.
void EndpointMailboxImpl::transmit(int to, const MailHeader& header,
                                   const std::shared_ptr<Outgoing>& message) {
  message->under_way_ = true;
  peers_[static_cast<std::size_t>(to)].under_way.fetch_add(1);
  transport::Message out{encode(header), {}};
  if (message->data_.size <= kCopied) {
    out.buffers.push_back(copyOf(message->data_));
    out.until_written = message;
  } else {
    out.buffers.push_back({message->data_.data, message->data_.size, message});
    out.wanted_back = true;
  }
  if (Error error = endpoint_->send(to, std::move(out))) message->error_ = std::move(error);
}

// Whatever goes wrong with a message of the mailbox's own is the loss of its peer, which is told.
void EndpointMailboxImpl::tell(int to, const MailHeader& header) {
  (void)!endpoint_->send(to, {encode(header), {}});
}

// --- receiving ---

Mailbox::Ticket EndpointMailboxImpl::receive(int from, Tag tag, OwnedBuffer into, OnReceived done,
                                             const Label& label) {
  std::unique_lock<std::mutex> lock(mutex_);
  PostedReceive receive{++tickets_, from, tag, label, std::move(into), std::move(done)};
  const Ticket ticket = receive.ticket;
  Error error = from == kAnyRank ? Error::ok() : checkRank(from, "receive from");
  if (!error && state_ != State::kOpen) error = reason_;
  if (!error) {
    if (std::shared_ptr<UnexpectedMessage> mail = matcher_.take(from, tag)) {
      takeWaiting(std::move(mail), std::move(receive), lock);
      return ticket;
    }
    error = whyNotFrom(from);
  }
  if (error) {
    lock.unlock();
    complete(receive, std::move(error), from, 0, {});
    return ticket;
  }
  matcher_.post(std::move(receive));
  std::vector<int> greet;
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == rank_ || peer.talked || peer.gone || (from != kAnyRank && from != rank)) continue;
    peer.talked = true;
    greet.push_back(rank);
  }
  lock.unlock();
  for (const int rank : greet)
    tell(rank, {MailKind::kHello, 0, 0, 0, {}, {}});
  return ticket;
}

// Why nothing more can come, if so.
Error EndpointMailboxImpl::whyNotFrom(int from) const {
  if (from != kAnyRank) {
    const Peer& peer = peers_[static_cast<std::size_t>(from)];
    return peer.gone ? peer.reason : Error::ok();
  }
  // Those who left in order owe nothing; but somebody must be there.
  const Peer* left = nullptr;
  int there = 0;
  for (int rank = 0; rank < size(); ++rank) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (peer.gone && !peer.left) return peer.reason;
    if (peer.left) left = &peer;
    there += rank == rank_ || peer.gone ? 0 : 1;
  }
  return there == 0 && left != nullptr ? left->reason : Error::ok();
}

// Gives a message that came before its receive to it. Releases the lock.
void EndpointMailboxImpl::takeWaiting(std::shared_ptr<UnexpectedMessage> mail,
                                      PostedReceive receive, std::unique_lock<std::mutex>& lock) {
  const int from = mail->from;
  const bool fits = receive.into.size == mail->size && receive.label == mail->label;
  if (mail->id) {
    Peer& peer = peers_[static_cast<std::size_t>(from)];
    --peer.announcements;
    if (fits) {
      peer.cleared.emplace(*mail->id, std::move(receive));
      lock.unlock();
      return tell(from, {MailKind::kClearToSend, 0, *mail->id, 0, {}, {}});
    }
    lock.unlock();
    tell(from, {MailKind::kClearToSend, 0, *mail->id, 1, {}, {}});
  } else if (fits && !mail->whole) {
    mail->taker = std::move(receive);  // finish() gives it the bytes
    return;
  } else {
    mail->unwanted = !mail->whole;  // finish() drops its bytes
    const std::uint64_t grant = mail->whole ? consumed(from, mail->size + kPerMessage) : 0;
    lock.unlock();
    if (fits) copyInto(receive.into, mail->bytes);
    mail->bytes = {};
    if (grant > 0) tell(from, {MailKind::kCredit, 0, 0, grant, {}, {}});
  }
  complete(
      receive,
      fits ? Error::ok()
           : Error(ErrorCode::kInvalidArgument, mismatch(receive, from, mail->size, mail->label)),
      from, mail->size, mail->label);
}

// A message of the window has found its receive. Returns what to grant now: a quarter of the window
// at a time. Called with the lock.
std::uint64_t EndpointMailboxImpl::consumed(int from, std::uint64_t cost) {
  if (from == rank_) return 0;
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  peer.kept -= std::min(cost, peer.kept);
  peer.owed += cost;
  if (peer.owed * 4 < peer.window || peer.gone || state_ != State::kOpen) return 0;
  return std::exchange(peer.owed, 0);
}

bool EndpointMailboxImpl::cancel(Ticket ticket, const Error& why) {
  std::optional<PostedReceive> receive;  // let go outside the lock
  std::shared_ptr<Outgoing> message;     // likewise
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    receive = matcher_.cancel(ticket);
    for (Peer& peer : peers_) {
      if (receive || message) break;
      const auto found = peer.announced.find(ticket);
      if (found == peer.announced.end()) continue;
      message = std::move(found->second);
      peer.announced.erase(found);
    }
  }
  if (!message) return receive.has_value();
  message->done_ = nullptr;
  tell(message->to_, {MailKind::kTakenBack,
                      0,
                      ticket,
                      static_cast<std::uint64_t>(why.code()),
                      {},
                      "rank " + std::to_string(rank_) + " took its message back: " + why.text()});
  return true;
}

// On the loop thread, which is in the middle of no message then.
void EndpointMailboxImpl::giveUp(int rank, Error why) {
  if (endpoint_ == nullptr || checkRank(rank, "give up")) return;
  endpoint_->runAfter(std::chrono::milliseconds(0),
                      [this, rank, why = std::move(why)] { endpoint_->losePeer(rank, why); });
}

std::string EndpointMailboxImpl::mismatch(const PostedReceive& receive, int from,
                                          std::uint64_t size, const Label& label) {
  std::string text = "rank " + std::to_string(from) + " sent " + std::to_string(size) + " bytes";
  if (receive.into.size != size)
    return text + " where " + std::to_string(receive.into.size) +
           " were expected; both sides must name the same size";
  if (receive.label != label) text += " that belong to another operation than the one that waits";
  return text;
}

void EndpointMailboxImpl::complete(const PostedReceive& receive, Error error, int from,
                                   std::uint64_t size, const Label& label) {
  if (receive.done) receive.done({std::move(error), from, size, label});
}

}  // namespace weft::collectives
