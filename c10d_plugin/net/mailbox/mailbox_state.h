// MailboxState: what the sending and the receiving side of a mailbox share.
//
// Threads: any. One lock guards everything except what is marked otherwise. It is a leaf, and not
// held while a message is sent or a completion runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "c10d_plugin/net/mailbox/credit_window.h"
#include "c10d_plugin/net/mailbox/mail_wire.h"
#include "c10d_plugin/net/mailbox/matching/message_matcher.h"
#include "c10d_plugin/net/mailbox/matching/op_progress.h"
#include "transport/endpoint.h"

namespace weft::collectives {

struct MailboxState;

// A message of up to so many bytes is copied, and the copy is kept until it is acknowledged. Such a
// message counts as sent once it is written, even if the peer then leaves in order.
inline constexpr std::size_t kCopied = std::size_t{32} << 10;

// A message that is being sent. Its completion runs when the last owner of its bytes releases it.
// The mailbox owns them while the message is only announced, then the endpoint.
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

// A message whose header was read and whose bytes are being read, for a posted receive or as an
// unexpected message.
struct ArrivingMessage {
  std::optional<PostedReceive> receive;
  std::shared_ptr<UnexpectedMessage> unexpected;

  bool any() const noexcept { return receive.has_value() || unexpected != nullptr; }
};

struct MailboxPeer {
  enum class Presence : std::uint8_t { kHere, kLeft, kLost };

  Presence presence = Presence::kHere;
  transport::Error reason;     // unless it is here
  bool talked = false;         // a connection exists or is being made, so its loss is noticed
  bool told_of_abort = false;  // it was told of this mailbox's abort()
  CreditWindow window;
  std::uint64_t announcements = 0;  // how many messages it has announced that wait there
  std::unordered_map<std::uint64_t, std::shared_ptr<SendRequest>> announced;  // to it, by ticket
  std::unordered_map<std::uint64_t, PostedReceive> cleared;  // receives of messages it may send

  ArrivingMessage arriving;                  // loop thread only
  std::atomic<std::uint32_t> in_transit{0};  // SendRequests whose bytes the endpoint still needs
  std::atomic<bool> broken{false};           // what is not written to it will never be
  std::atomic<bool> left{false};             // it left in order, and acknowledges nothing any more
};

struct MailboxState {
  enum class Phase : std::uint8_t { kOpen, kAborted, kClosed };  // open, then one of the others

  MailboxState(int own_rank, int size) : rank(own_rank), peers(static_cast<std::size_t>(size)) {}

  int size() const noexcept { return static_cast<int>(peers.size()); }
  MailboxPeer& peer(int other) { return peers[static_cast<std::size_t>(other)]; }
  const MailboxPeer& peer(int other) const { return peers[static_cast<std::size_t>(other)]; }

  // Why no message can come from this rank any more, or from any rank. With the lock.
  transport::Error whyNotFrom(int from) const;
  // Sends a message without bytes, or takes it at once where it is this rank's own. Its failure is
  // the loss of its peer, which is reported.
  void tell(int to, const MailHeader& header) const;
  // The error of a message that no operation takes.
  transport::Error whyUnwanted(int from, const Label& sent, const Mailbox::OpStage& stage) const;
  // For a message without a posted receive. True: no operation will take it, so the mailbox has
  // aborted and released the lock.
  bool abortIfUnwanted(int from, const MailHeader& header, std::unique_lock<std::mutex>& lock);

  const int rank;
  std::unique_ptr<transport::Endpoint> endpoint;  // null in a group of one

  mutable std::mutex mutex;
  Phase phase = Phase::kOpen;
  transport::Error reason;         // unless open
  Mailbox::Ticket tickets = 0;     // the last; the id of an announced message is its ticket
  std::vector<MailboxPeer> peers;  // by rank
  OpProgress progress;             // of the collectives

  // The mailbox's, called without the lock. `own`: a message of this rank to itself has come.
  std::function<void(transport::Error)> abort;
  std::function<void(const MailHeader&, transport::OwnedBuffer)> own;
};

}  // namespace weft::collectives
