// MailboxState: what the sending and the receiving side of a mailbox share.
//
// One lock guards everything but what is marked otherwise. It is a leaf, and not held while a
// message is sent or a completion runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "c10d_plugin/net/mailbox/credit_window.h"
#include "c10d_plugin/net/mailbox/mail_wire.h"
#include "c10d_plugin/net/mailbox/message_matcher.h"
#include "c10d_plugin/net/mailbox/op_progress.h"
#include "transport/endpoint.h"

namespace weft::collectives {

struct MailboxState;

// A message of up to so many bytes is kept as a copy until it is acknowledged; it counts as sent
// once it is written, which a peer that then leaves in order does not change.
inline constexpr std::size_t kCopied = std::size_t{32} << 10;

// A message on its way out. Its completion runs when the last owner of its bytes releases it: the
// mailbox while the message is only announced, then the endpoint.
struct SendRequest {
  SendRequest(MailboxState& mailbox, int receiver, transport::OwnedBuffer bytes,
              Mailbox::OnSent on_sent)
      : state(mailbox), to(receiver), data(std::move(bytes)), done(std::move(on_sent)) {}
  ~SendRequest();
  SendRequest(const SendRequest&) = delete;
  SendRequest& operator=(const SendRequest&) = delete;

  MailboxState& state;
  const int to;
  transport::OwnedBuffer data;
  Mailbox::OnSent done;
  transport::Error error;
  bool transmitted = false;  // given to the endpoint
};

// A message whose header has been read and whose bytes are being read: into a posted receive, or as
// an unexpected message.
struct ArrivingMessage {
  std::optional<PostedReceive> receive;
  std::shared_ptr<UnexpectedMessage> unexpected;

  bool any() const noexcept { return receive.has_value() || unexpected != nullptr; }
};

struct MailboxPeer {
  enum class Presence : std::uint8_t { kHere, kLeft, kLost };

  Presence presence = Presence::kHere;
  transport::Error reason;     // unless it is here
  bool talked = false;         // a connection exists, or will, by which its loss is noticed
  bool told_of_abort = false;  // and need not be told again
  CreditWindow window;
  std::uint64_t announcements = 0;  // of messages that wait at the peer
  std::unordered_map<std::uint64_t, std::shared_ptr<SendRequest>> announced;  // to it, by ticket
  std::unordered_map<std::uint64_t, PostedReceive> cleared;  // its announced ones, to come

  ArrivingMessage arriving;                  // loop thread only
  std::atomic<std::uint32_t> in_transit{0};  // SendRequests whose bytes the endpoint still needs
  std::atomic<bool> broken{false};           // what it was sent and not written will not be
  std::atomic<bool> left{false};             // in order: it acknowledges nothing any more
};

struct MailboxState {
  enum class Phase : std::uint8_t { kOpen, kAborted, kClosed };  // open, then one of the others

  MailboxState(int own_rank, int size) : rank(own_rank), peers(static_cast<std::size_t>(size)) {}

  int size() const noexcept { return static_cast<int>(peers.size()); }
  MailboxPeer& peer(int other) { return peers[static_cast<std::size_t>(other)]; }
  const MailboxPeer& peer(int other) const { return peers[static_cast<std::size_t>(other)]; }

  // kInvalidArgument unless `peer` is a rank of the group. `what`: "send to", …
  transport::Error checkRank(int peer, const char* what) const;
  // Why no message can come from this rank any more, or from any rank. With the lock.
  transport::Error whyNotFrom(int from) const;
  // Sends a message without bytes, or takes it at once where it is this rank's own. Its failure is
  // the loss of its peer, which is reported.
  void tell(int to, const MailHeader& header) const;
  // The error of a message that no operation takes.
  transport::Error whyUnwanted(int from, const Label& sent, const Mailbox::OpStage& stage) const;
  // A message came for which no receive is posted. True: no operation takes it, and the mailbox has
  // aborted; releases the lock then.
  bool abortIfUnwanted(int from, const MailHeader& header, std::unique_lock<std::mutex>& lock);

  const int rank;
  std::unique_ptr<transport::Endpoint> endpoint;  // null in a group of one

  mutable std::mutex mutex;
  Phase phase = Phase::kOpen;
  transport::Error reason;         // unless open
  Mailbox::Ticket tickets = 0;     // of receives and messages; an announced message's is its id
  std::vector<MailboxPeer> peers;  // by rank
  OpProgress progress;             // of the collectives

  // The mailbox's; without the lock. `own`: a message of this rank to itself has come.
  std::function<void(transport::Error)> abort;
  std::function<void(const MailHeader&, transport::OwnedBuffer)> own;
};

}  // namespace weft::collectives
