#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"

#include <iterator>
#include <utility>

#include "transport/io/address.h"

namespace weft::collectives {

using transport::Disposition;
using transport::Error;
using transport::ErrorCode;
using transport::OwnedBuffer;
using transport::Result;

namespace {

// All ranks have joined, so a rank that cannot be reached now is lost, or has left. A rank that
// leaves says so only to those that it has talked to.
Error asLoss(const Error& reason) {
  if (reason.code() == ErrorCode::kConnectFailed)
    return {ErrorCode::kPeerLost, reason.text() + ". It may also have left the group"};
  return reason.code() == ErrorCode::kDuplicate ? Error(ErrorCode::kPeerLost, reason.text())
                                                : reason;
}

}  // namespace

// --- joining ---

Result<std::unique_ptr<EndpointMailbox>> EndpointMailbox::join(const MailboxOptions& options,
                                                               KeyValue& store, Deadline deadline) {
  std::unique_ptr<EndpointMailbox> mailbox(new EndpointMailbox(options.rank, options.size));
  if (Error error = mailbox->open(options, store, deadline)) return error;
  return mailbox;
}

EndpointMailbox::~EndpointMailbox() {
  close();
  state_.endpoint.reset();
}

Error EndpointMailbox::open(const MailboxOptions& options, KeyValue& store, Deadline deadline) {
  const std::string own_host = transport::hostIdentity();
  if (size() == 1) {
    hosts_ = {own_host};
    sharing_ = hosts_;
    return Error::ok();
  }
  auto opened = openEndpoint(options, store, deadline, *this);
  if (!opened.ok()) return opened.error();
  state_.endpoint = std::move(opened.value().endpoint);
  key_ = opened.value().key;
  for (int other = 0; other < size(); ++other) {
    const MailboxAddress& peer = opened.value().ranks[static_cast<std::size_t>(other)];
    hosts_.push_back(peer.host);
    sharing_.push_back(peer.shares_memory ? peer.host : std::string());
    if (other == rank()) continue;
    const bool same_host = !own_host.empty() && peer.host == own_host;
    {
      const std::lock_guard<std::mutex> lock(state_.mutex);
      state_.peer(other).window =
          CreditWindow(same_host ? options.eager_bytes_same_host : options.eager_bytes);
    }
    if (Error error = state_.endpoint->addPeer({other, peer.name, peer.address})) return error;
  }
  return Error::ok();
}

transport::EndpointStats EndpointMailbox::stats() const {
  return state_.endpoint == nullptr ? transport::EndpointStats() : state_.endpoint->stats();
}

// --- requests ---

Mailbox::Ticket EndpointMailbox::send(int to, Tag tag, OwnedBuffer data, OnSent done,
                                      const Label& label) {
  return sender_.send(to, tag, std::move(data), std::move(done), label);
}

Mailbox::Ticket EndpointMailbox::receive(int from, Tag tag, OwnedBuffer into, OnReceived done,
                                         const Label& label) {
  return receiver_.receive(from, tag, std::move(into), std::move(done), label);
}

bool EndpointMailbox::cancel(Ticket ticket, const Error& why) {
  return receiver_.cancel(ticket) || sender_.cancel(ticket, why);
}

Error EndpointMailbox::reached(const OpStage& stage) { return receiver_.reached(stage); }

std::vector<int> EndpointMailbox::awaited() const {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  return receiver_.awaited();
}

// On the loop thread, which is not in the middle of a message then.
void EndpointMailbox::giveUp(int rank, Error why) {
  if (state_.endpoint == nullptr || rank == state_.rank) return;
  state_.endpoint->runAfter(std::chrono::milliseconds(0), [this, rank, why = std::move(why)] {
    state_.endpoint->losePeer(rank, why);
  });
}

// --- messages from the endpoint ---

Disposition EndpointMailbox::onHeader(std::int32_t from, std::span<const std::byte> bytes,
                                      std::span<const std::uint64_t> sizes,
                                      std::vector<OwnedBuffer>& buffers) {
  const std::optional<MailHeader> header = decode(bytes);
  if (!header) return Disposition::kRefuse;
  const bool has_bytes = header->kind == MailKind::kEager || header->kind == MailKind::kRendezvous;
  if (sizes.size() != (has_bytes ? 1U : 0U)) return Disposition::kRefuse;
  bool ended = false;
  bool gone = false;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    state_.peer(from).talked = true;
    ended = state_.phase != Phase::kOpen;
    gone = state_.peer(from).presence != Presence::kHere;
  }
  if (ended) {
    if (header->kind != MailKind::kAbort) notice_.tell(from);
    return Disposition::kDiscard;
  }
  // This rank has given up, so the requests for its messages have ended.
  if (gone) return Disposition::kDiscard;
  if (has_bytes) return receiver_.onDataHeader(from, *header, sizes[0], buffers[0]);
  // Between a message's header and its bytes only the same message can come again.
  return state_.peer(from).arriving.any() ? Disposition::kRefuse : Disposition::kAccept;
}

void EndpointMailbox::onMessage(std::int32_t from, std::span<const std::byte> bytes,
                                std::vector<OwnedBuffer> buffers) {
  // onHeader() has checked it.
  take(from, *decode(bytes), buffers.empty() ? OwnedBuffer() : std::move(buffers[0]));
}

void EndpointMailbox::take(int from, const MailHeader& header, OwnedBuffer bytes) {
  switch (header.kind) {
    case MailKind::kHello:
      return;
    case MailKind::kEager:
    case MailKind::kRendezvous:
      if (from == rank()) return receiver_.rendezvous().onOwnBytes(header, bytes);
      return receiver_.onData(from, header, std::move(bytes));
    case MailKind::kRequestToSend:
      return receiver_.rendezvous().onRequestToSend(from, header);
    case MailKind::kClearToSend:
      return sender_.onClearToSend(from, header);
    case MailKind::kCredit:
      return sender_.onCredit(from, header);
    case MailKind::kSendCancelled:
      return receiver_.rendezvous().onSendCancelled(from, header);
    case MailKind::kAbort:
      return removePeer(from, Presence::kLost,
                        {transport::errorCodeFrom(header.id),
                         "rank " + std::to_string(from) + " gave up: " + header.text});
  }
}

// --- lost peers ---

void EndpointMailbox::onSendFailed(std::int32_t to, std::span<const std::byte>,
                                   const Error& reason) {
  MailboxPeer& peer = state_.peer(to);
  const std::lock_guard<std::mutex> lock(state_.mutex);
  if (!peer.reason) peer.reason = asLoss(reason);
  peer.broken.store(true);
}

void EndpointMailbox::onPeerLost(const transport::PeerLoss& loss) {
  const Error reason = asLoss(loss.reason);
  const bool closed = reason.code() == ErrorCode::kPeerClosed;
  removePeer(loss.rank, closed ? Presence::kLeft : Presence::kLost, reason);
  if (const auto receive = receiver_.takeArriving(loss.rank))
    receive->complete(reason, loss.rank, 0, {});
}

void EndpointMailbox::removePeer(int rank, Presence presence, const Error& reason) {
  Failures failures;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    MailboxPeer& peer = state_.peer(rank);
    (presence == Presence::kLeft ? peer.left : peer.broken).store(true);
    if (peer.presence != Presence::kHere) return;
    peer.presence = presence;
    if (!peer.reason || presence == Presence::kLost) peer.reason = reason;
    failures = {receiver_.takeFrom(rank), MailSender::takeAnnounced(peer)};
  }
  fail(std::move(failures), reason);
}

void EndpointMailbox::fail(Failures failures, const Error& reason) {
  for (const std::shared_ptr<SendRequest>& request : failures.sends)
    request->error = reason;
  failures.sends.clear();
  for (const PostedReceive& receive : failures.receives)
    receive.complete(reason, receive.from, 0, {});
}

// --- the end of the mailbox ---

bool EndpointMailbox::end(Phase phase, const Error& reason) {
  Failures failures;
  Error why;
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    first = state_.phase == Phase::kOpen;
    if (first) {
      state_.reason = reason;
      state_.phase = phase;
    }
    why = state_.reason;
    failures.receives = receiver_.takeAll();
    for (MailboxPeer& peer : state_.peers) {
      auto requests = MailSender::takeAnnounced(peer);
      std::move(requests.begin(), requests.end(), std::back_inserter(failures.sends));
    }
  }
  fail(std::move(failures), why);
  return first;
}

void EndpointMailbox::abort(Error reason) {
  if (end(Phase::kAborted, reason) && state_.endpoint != nullptr) notice_.begin(reason);
}

void EndpointMailbox::close(std::chrono::milliseconds linger) {
  const std::lock_guard<std::mutex> only_one(close_mutex_);
  end(Phase::kClosed, {ErrorCode::kShutdown, "this group was closed"});
  if (state_.endpoint == nullptr) return;
  notice_.tellAll();  // if it was aborted: abort()'s own task may be too late
  state_.endpoint->close(linger);
  // The loop thread has ended, so nobody writes into the receives that it was reading.
  for (int from = 0; from < size(); ++from) {
    if (const auto receive = receiver_.takeArriving(from))
      receive->complete(state_.reason, receive->from, 0, {});
  }
}

}  // namespace weft::collectives
