// What comes from the wire, on the loop thread: the header first, which decides where the bytes are
// read to, then the whole message.
#include <cstring>
#include <stdexcept>
#include <utility>

#include "c10d_plugin/net/mailbox/endpoint_mailbox_impl.h"

namespace weft::collectives {

using transport::Disposition;
using transport::Error;
using transport::ErrorCode;
using transport::OwnedBuffer;

namespace {

constexpr std::uint64_t kMaxAnnouncements = std::uint64_t{1} << 20;

// Ends the peer: the endpoint puts the text into the reason.
[[noreturn]] void refuseFlood(const std::string& what) {
  throw std::length_error(what + "; it does not keep to this group's limits");
}

// A peer's reason; a code that is none, or none of a failure, is a mistake of its own.
Error reasonFrom(std::uint64_t code, std::string text) {
  const bool known = code > static_cast<std::uint64_t>(ErrorCode::kOk) &&
                     code <= static_cast<std::uint64_t>(ErrorCode::kSystem);
  return {known ? static_cast<ErrorCode>(code) : ErrorCode::kProtocol, std::move(text)};
}

OwnedBuffer memoryFor(std::uint64_t size) {
  if (size == 0) return {};
  const std::shared_ptr<std::byte[]> memory = std::make_unique_for_overwrite<std::byte[]>(size);
  return {memory.get(), size, memory};
}

}  // namespace

Disposition EndpointMailboxImpl::onHeader(std::int32_t from, std::span<const std::byte> bytes,
                                          std::span<const std::uint64_t> sizes,
                                          std::vector<OwnedBuffer>& buffers) {
  const std::optional<MailHeader> header = decode(bytes);
  if (!header) return Disposition::kRefuse;
  const bool has_bytes = header->kind == MailKind::kData || header->kind == MailKind::kAnswer;
  if (sizes.size() != (has_bytes ? 1U : 0U)) return Disposition::kRefuse;
  bool aborted = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    peers_[static_cast<std::size_t>(from)].talked = true;
    aborted = state_ != State::kOpen;
  }
  if (aborted) {
    if (header->kind != MailKind::kAbort) answerAborted(from);
    return Disposition::kDiscard;
  }
  const Peer& peer = peers_[static_cast<std::size_t>(from)];
  if (peer.arriving.receive || peer.arriving.mail != nullptr) {
    const bool same = has_bytes && comesAgain(peer, sizes[0], buffers[0]);
    return same ? Disposition::kAccept : Disposition::kRefuse;
  }
  if (header->kind == MailKind::kData) return onData(from, *header, sizes[0], buffers[0]);
  if (header->kind == MailKind::kAnswer) return onAnswer(from, *header, sizes[0], buffers[0]);
  return Disposition::kAccept;
}

// The connection broke before the message was whole, and here it comes once more: whose it is was
// decided, only where its bytes go is asked again. False: it is another one.
bool EndpointMailboxImpl::comesAgain(const Peer& peer, std::uint64_t size, OwnedBuffer& buffer) {
  const Arriving& before = peer.arriving;
  const bool placed = buffer.data != nullptr;  // in shared memory
  if (before.receive) {
    if (before.receive->into.size != size) return false;
    if (!placed) buffer = before.receive->into;
    return true;
  }
  if (before.mail == nullptr || before.mail->size != size) return false;
  if (!placed) buffer = memoryFor(size);
  return true;
}

Disposition EndpointMailboxImpl::onData(int from, const MailHeader& header, std::uint64_t size,
                                        OwnedBuffer& buffer) {
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  const std::uint64_t cost = size + kPerMessage;
  std::unique_lock<std::mutex> lock(mutex_);
  std::optional<PostedReceive> receive = matcher_.match(from, header.tag);
  if (receive && (receive->into.size != size || receive->label != header.label)) {
    const std::uint64_t grant = consumed(from, cost);
    lock.unlock();
    if (grant > 0) tell(from, {MailKind::kCredit, 0, 0, grant, {}, {}});
    complete(*receive, {ErrorCode::kInvalidArgument, mismatch(*receive, from, size, header.label)},
             from, size, header.label);
    return Disposition::kDiscard;
  }
  const bool placed = buffer.data != nullptr;  // in shared memory
  if (receive) {
    if (!placed) buffer = receive->into;
    peer.arriving.receive = std::move(receive);
    return Disposition::kAccept;
  }
  if (peer.kept + cost > peer.window)
    refuseFlood("more than " + std::to_string(peer.window) +
                " bytes of messages for which no receive is posted");
  auto mail = std::make_shared<UnexpectedMessage>();
  mail->from = from;
  mail->tag = header.tag;
  mail->label = header.label;
  mail->size = size;
  if (!placed) buffer = memoryFor(size);
  peer.kept += cost;
  peer.arriving.mail = mail;
  matcher_.keep(std::move(mail));
  return Disposition::kAccept;
}

Disposition EndpointMailboxImpl::onAnswer(int from, const MailHeader& header, std::uint64_t size,
                                          OwnedBuffer& buffer) {
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = peer.cleared.find(header.id);
  if (found == peer.cleared.end() || found->second.into.size != size) return Disposition::kRefuse;
  if (buffer.data == nullptr) buffer = found->second.into;
  peer.arriving.receive = std::move(found->second);
  peer.cleared.erase(found);
  return Disposition::kAccept;
}

void EndpointMailboxImpl::onMessage(std::int32_t from, std::span<const std::byte> bytes,
                                    std::vector<OwnedBuffer> buffers) {
  const MailHeader header = *decode(bytes);  // onHeader() has looked
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  switch (header.kind) {
    case MailKind::kHello:
      return;
    case MailKind::kData: {
      Arriving arrived = std::exchange(peer.arriving, {});
      // In either case the sender's window has room for it again; for one that waits, when taken.
      arrived.grant = buffers[0].size + kPerMessage;
      return finish(from, std::move(arrived), std::move(buffers[0]));
    }
    case MailKind::kAnswer:
      return finish(from, std::exchange(peer.arriving, {}), std::move(buffers[0]));
    case MailKind::kRequestToSend:
      return onAnnounce(from, header);
    case MailKind::kClearToSend:
      return onClear(from, header);
    case MailKind::kCredit: {
      const std::lock_guard<std::mutex> lock(mutex_);
      peer.credit += std::min(header.size, peer.window - peer.credit);
      return;
    }
    case MailKind::kTakenBack:
      return onTakenBack(from, header);
    case MailKind::kAbort:
      return lose(
          from, false,
          reasonFrom(header.id, "rank " + std::to_string(from) + " gave up: " + header.text));
  }
}

// The bytes of a message are here.
void EndpointMailboxImpl::finish(int from, Arriving arrived, OwnedBuffer bytes) {
  std::optional<PostedReceive> receive = std::move(arrived.receive);
  Label label;
  std::unique_lock<std::mutex> lock(mutex_);
  if (arrived.mail != nullptr) {
    UnexpectedMessage& mail = *arrived.mail;
    label = mail.label;
    mail.whole = true;
    if (mail.unwanted) {
      const std::uint64_t grant = consumed(from, arrived.grant);
      lock.unlock();
      if (grant > 0) tell(from, {MailKind::kCredit, 0, 0, grant, {}, {}});
      return;
    }
    if (!mail.taker) {
      mail.bytes = std::move(bytes);
      return;
    }
    receive = std::exchange(mail.taker, std::nullopt);
  } else if (receive) {
    label = receive->label;
  }
  if (!receive) return;
  const std::uint64_t grant = arrived.grant > 0 ? consumed(from, arrived.grant) : 0;
  lock.unlock();
  if (bytes.data != receive->into.data && bytes.size > 0)
    std::memcpy(receive->into.data, bytes.data, bytes.size);
  const std::uint64_t size = bytes.size;
  bytes = {};
  if (grant > 0) tell(from, {MailKind::kCredit, 0, 0, grant, {}, {}});
  complete(*receive, Error::ok(), from, size, label);
}

void EndpointMailboxImpl::onAnnounce(int from, const MailHeader& header) {
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  std::unique_lock<std::mutex> lock(mutex_);
  std::optional<PostedReceive> receive = matcher_.match(from, header.tag);
  if (!receive) {
    if (++peer.announcements > kMaxAnnouncements) {
      lock.unlock();
      return endpoint_->losePeer(
          from, {ErrorCode::kLimitExceeded,
                 "rank " + std::to_string(from) + " is cut off: it sends more than " +
                     std::to_string(kMaxAnnouncements) + " messages that nobody receives"});
    }
    auto mail = std::make_shared<UnexpectedMessage>();
    mail->from = from;
    mail->tag = header.tag;
    mail->label = header.label;
    mail->size = header.size;
    mail->id = header.id;
    return matcher_.keep(std::move(mail));
  }
  const bool fits = receive->into.size == header.size && receive->label == header.label;
  if (fits) peer.cleared.emplace(header.id, std::move(*receive));
  lock.unlock();
  tell(from, {MailKind::kClearToSend, 0, header.id, fits ? 0U : 1U, {}, {}});
  if (!fits)
    complete(*receive,
             {ErrorCode::kInvalidArgument, mismatch(*receive, from, header.size, header.label)},
             from, header.size, header.label);
}

void EndpointMailboxImpl::onClear(int from, const MailHeader& header) {
  std::shared_ptr<Outgoing> message;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& announced = peers_[static_cast<std::size_t>(from)].announced;
    const auto found = announced.find(header.id);
    if (found == announced.end()) return;
    message = std::move(found->second);
    announced.erase(found);
  }
  if (header.size != 0) return;  // declined: the bytes may be reused
  transmit(from, {MailKind::kAnswer, 0, header.id, 0, {}, {}}, message);
}

// Nobody waits for the message yet, and it is forgotten; or a receive does, and fails.
void EndpointMailboxImpl::onTakenBack(int from, const MailHeader& header) {
  std::optional<PostedReceive> receive;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(from)];
    if (const auto found = peer.cleared.find(header.id); found != peer.cleared.end()) {
      receive = std::move(found->second);
      peer.cleared.erase(found);
    } else if (matcher_.forgetAnnounced(from, header.id)) {
      --peer.announcements;
    }
  }
  if (receive) complete(*receive, reasonFrom(header.size, header.text), from, 0, {});
}

}  // namespace weft::collectives
