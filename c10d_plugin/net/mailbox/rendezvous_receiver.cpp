#include "c10d_plugin/net/mailbox/rendezvous_receiver.h"

#include <memory>
#include <optional>
#include <utility>

#include "c10d_plugin/core/collectives.h"

namespace weft::collectives {

using transport::Disposition;
using transport::Error;
using transport::ErrorCode;
using transport::OwnedBuffer;

namespace {

constexpr std::uint64_t kMaxAnnouncements = std::uint64_t{1} << 20;

// No sender of ours gives two messages one number.
Error repeatsNumber(int from) {
  return {ErrorCode::kProtocol, "rank " + std::to_string(from) +
                                    " is cut off: it announces two messages under one number"};
}

}  // namespace

void RendezvousReceiver::onRequestToSend(int from, const MailHeader& header) {
  MailboxPeer& peer = state_.peer(from);
  std::unique_lock<std::mutex> lock(state_.mutex);
  std::optional<PostedReceive> receive = matcher_.match(from, header.tag);
  if (receive) return clearToSend(from, header, *receive, lock);
  if (state_.abortIfUnwanted(from, header, lock)) return;
  if (++peer.announcements > kMaxAnnouncements && from != state_.rank) {
    lock.unlock();
    return state_.endpoint->losePeer(
        from, {ErrorCode::kLimitExceeded,
               "rank " + std::to_string(from) + " is cut off: it sends more than " +
                   std::to_string(kMaxAnnouncements) + " messages that nobody receives"});
  }
  auto message = std::make_shared<UnexpectedMessage>(from, header.tag, header.label, header.size);
  message->state = UnexpectedMessage::State::kAnnounced;
  message->id = header.id;
  if (matcher_.keep(std::move(message))) return;
  lock.unlock();
  state_.endpoint->losePeer(from, repeatsNumber(from));
}

void RendezvousReceiver::answer(const UnexpectedMessage& message, PostedReceive& receive,
                                std::unique_lock<std::mutex>& lock) {
  --state_.peer(message.from).announcements;
  clearToSend(message.from,
              {MailKind::kRequestToSend, message.tag, message.id, message.size, message.label, {}},
              receive, lock);
}

// The message may come, into `receive`; or is not wanted, because it does not fit. Releases the
// lock.
void RendezvousReceiver::clearToSend(int from, const MailHeader& announced, PostedReceive& receive,
                                     std::unique_lock<std::mutex>& lock) {
  const bool fitting = receive.fits(announced.size, announced.label);
  // Leaves `receive` as it is where another message of this number is to come.
  const bool cleared =
      fitting && state_.peer(from).cleared.try_emplace(announced.id, std::move(receive)).second;
  lock.unlock();
  if (fitting && !cleared) {
    const Error why = repeatsNumber(from);
    state_.endpoint->losePeer(from, why);
    return receive.complete(why, from, 0, {});
  }
  state_.tell(from, {MailKind::kClearToSend, 0, announced.id, fitting ? 0U : 1U, {}, {}});
  if (!fitting) receive.deliver(from, announced.size, announced.label);
}

Disposition RendezvousReceiver::onHeader(int from, const MailHeader& header, std::uint64_t size,
                                         OwnedBuffer& buffer) {
  MailboxPeer& peer = state_.peer(from);
  const std::lock_guard<std::mutex> lock(state_.mutex);
  const auto found = peer.cleared.find(header.id);
  if (found == peer.cleared.end() || found->second.into.size != size) return Disposition::kRefuse;
  if (buffer.data == nullptr) buffer = found->second.into;
  peer.arriving.receive = std::move(found->second);
  peer.cleared.erase(found);
  return Disposition::kAccept;
}

void RendezvousReceiver::onOwnBytes(const MailHeader& header, const OwnedBuffer& bytes) {
  std::optional<PostedReceive> receive;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    auto& cleared = state_.peer(state_.rank).cleared;
    const auto found = cleared.find(header.id);
    if (found == cleared.end()) return;  // the mailbox has ended
    receive = std::move(found->second);
    cleared.erase(found);
  }
  copyOwn({bytes.data, bytes.size}, {receive->into.data, receive->into.size});
  receive->complete(Error::ok(), state_.rank, bytes.size, receive->label);
}

void RendezvousReceiver::onSendCancelled(int from, const MailHeader& header) {
  std::optional<PostedReceive> receive;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    MailboxPeer& peer = state_.peer(from);
    if (const auto found = peer.cleared.find(header.id); found != peer.cleared.end()) {
      receive = std::move(found->second);
      peer.cleared.erase(found);
    } else if (matcher_.forgetAnnounced(from, header.id)) {
      --peer.announcements;
    }
  }
  if (receive) receive->complete({transport::errorCodeFrom(header.size), header.text}, from, 0, {});
}

void RendezvousReceiver::takeCleared(MailboxPeer& peer, std::vector<PostedReceive>& to) {
  for (auto& [id, receive] : peer.cleared)
    to.push_back(std::move(receive));
  peer.cleared.clear();
}

}  // namespace weft::collectives
