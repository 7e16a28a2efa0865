// MailSender: the sending side of a mailbox.
//
// A message is sent eagerly if the peer's window has credit for it. Otherwise it is only announced
// (RTS): its bytes stay here until a receive wants them (CTS), and are then read from the socket
// straight into that receive's memory. A message to the rank itself is announced too, and copied.
//
// Threads: any, unless a member says otherwise.
#pragma once

#include <memory>
#include <vector>

#include "c10d_plugin/net/mailbox/mailbox_state.h"

namespace weft::collectives {

class MailSender {
 public:
  explicit MailSender(MailboxState& state) : state_(state) {}

  // As Mailbox::send().
  Mailbox::Ticket send(int to, Tag tag, transport::OwnedBuffer data, Mailbox::OnSent done,
                       const Label& label);
  // Takes an announced message back and tells its receiver `why`.
  bool cancel(Mailbox::Ticket ticket, const transport::Error& why);

  // Loop thread; of this rank's own messages, any.
  void onClearToSend(int from, const MailHeader& header);
  void onCredit(int from, const MailHeader& header);

  // Takes out the announced messages to this peer. With the lock.
  static std::vector<std::shared_ptr<SendRequest>> takeAnnounced(MailboxPeer& peer);

 private:
  void transmit(const MailHeader& header, const std::shared_ptr<SendRequest>& request);

  MailboxState& state_;
};

}  // namespace weft::collectives
