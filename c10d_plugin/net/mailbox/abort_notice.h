// AbortNotice: how the other ranks hear that this mailbox has aborted, and how its
// messages in transit end.
//
// Threads: any, unless a member says otherwise; without the mailbox's lock. The mailbox has an
// endpoint, whose tasks refer to the notice until it is closed.
#pragma once

#include "c10d_plugin/net/mailbox/mailbox_state.h"

namespace weft::collectives {

class AbortNotice {
 public:
  explicit AbortNotice(MailboxState& state) : state_(state) {}

  // The mailbox has just aborted: tells the others soon, and cuts the connections of messages that
  // have not ended by themselves a moment later.
  void begin(transport::Error reason);
  // Tells the ranks that a connection exists to, or will. Nothing if the mailbox has not aborted.
  void tellAll();
  void tell(int to);

 private:
  // Loop thread: nobody reads or writes this rank's memory afterwards.
  void cutConnections(const transport::Error& reason);

  MailboxState& state_;
};

}  // namespace weft::collectives
