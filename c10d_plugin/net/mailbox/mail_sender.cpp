#include "c10d_plugin/net/mailbox/mail_sender.h"

#include <utility>

#include "c10d_plugin/net/mailbox/buffers.h"

namespace weft::collectives {

using transport::Error;
using transport::OwnedBuffer;

Mailbox::Ticket MailSender::send(int to, Tag tag, OwnedBuffer data, Mailbox::OnSent done,
                                 const Label& label) {
  MailHeader header{MailKind::kEager, tag, 0, data.size, label, {}};
  const std::uint64_t cost = CreditWindow::costOf(data.size);
  const auto request = std::make_shared<SendRequest>(state_, to, std::move(data), std::move(done));
  Mailbox::Ticket ticket = 0;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    MailboxPeer& peer = state_.peer(to);
    if (state_.phase != MailboxState::Phase::kOpen) {
      request->error = state_.reason;
    } else if (peer.presence != MailboxPeer::Presence::kHere) {
      request->error = peer.reason;
    } else if (to == state_.rank || !peer.window.spend(cost)) {
      header.kind = MailKind::kRequestToSend;
      header.id = state_.tickets + 1;
      peer.announced.emplace(header.id, request);
    }
    ticket = ++state_.tickets;
    peer.talked = to != state_.rank;
  }
  if (request->error) return 0;
  if (header.kind == MailKind::kRequestToSend) {
    state_.tell(to, header);
    return ticket;
  }
  transmit(header, request);
  return header.size <= kCopied ? 0 : ticket;
}

// The endpoint keeps `request` until its bytes may be used again.
void MailSender::transmit(const MailHeader& header, const std::shared_ptr<SendRequest>& request) {
  if (request->to == state_.rank)
    return state_.own(header, {request->data.data, request->data.size, request});
  request->transmitted = true;
  state_.peer(request->to).in_transit.fetch_add(1);
  transport::Message out{encode(header), {}};
  if (request->data.size <= kCopied) {
    out.buffers.push_back(copyOf(request->data));
    out.until_written = request;
  } else {
    out.buffers.push_back({request->data.data, request->data.size, request});
    out.wanted_back = true;
  }
  Error error = state_.endpoint->send(request->to, std::move(out));
  if (!error) return;
  const std::lock_guard<std::mutex> lock(state_.mutex);
  // A peer that gave up has said why; the endpoint knows only that it has left since.
  const MailboxPeer& peer = state_.peer(request->to);
  const bool gave_up = peer.presence == MailboxPeer::Presence::kLost;
  request->error = gave_up ? peer.reason : error;
}

bool MailSender::cancel(Mailbox::Ticket ticket, const Error& why) {
  std::shared_ptr<SendRequest> request;  // released without the lock
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    for (MailboxPeer& peer : state_.peers) {
      const auto found = peer.announced.find(ticket);
      if (found == peer.announced.end()) continue;
      request = std::move(found->second);
      peer.announced.erase(found);
      break;
    }
  }
  if (!request) return false;
  request->done = nullptr;
  state_.tell(request->to,
              {MailKind::kSendCancelled,
               0,
               ticket,
               static_cast<std::uint64_t>(why.code()),
               {},
               "rank " + std::to_string(state_.rank) + " cancelled its send: " + why.text()});
  return true;
}

void MailSender::onClearToSend(int from, const MailHeader& header) {
  std::shared_ptr<SendRequest> request;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    auto& announced = state_.peer(from).announced;
    const auto found = announced.find(header.id);
    if (found == announced.end()) return;
    request = std::move(found->second);
    announced.erase(found);
  }
  if (header.size != 0) return;  // declined: the bytes may be reused
  transmit({MailKind::kRendezvous, 0, header.id, 0, {}, {}}, request);
}

void MailSender::onCredit(int from, const MailHeader& header) {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  state_.peer(from).window.refill(header.size);
}

std::vector<std::shared_ptr<SendRequest>> MailSender::takeAnnounced(MailboxPeer& peer) {
  std::vector<std::shared_ptr<SendRequest>> taken;
  for (auto& [id, request] : peer.announced)
    taken.push_back(std::move(request));
  peer.announced.clear();
  return taken;
}

}  // namespace weft::collectives
