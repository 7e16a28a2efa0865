// OpProgress: how far the operations of each channel have come, and so which messages no operation
// here can take any more.
//
// An operation receives all messages that belong to it before it is over. So a message of an
// earlier operation, or of the same operation from a rank that called something else, proves that
// the ranks called different operations. A receive, which compares the labels, finds only some of
// these messages: two ranks that both take themselves for the root receive nothing and would not
// notice.
//
// Threads: under the mailbox's lock.
#pragma once

#include <vector>

#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

class OpProgress {
 public:
  void note(const Mailbox::OpStage& stage);
  // The stage of the channel's operation, if it shows that nobody takes such a message; else null.
  const Mailbox::OpStage* whereUnwanted(Tag tag, const Label& label) const;

  // The lowest tag that is compared with this one.
  static Tag lowest(Tag last);

 private:
  std::vector<Mailbox::OpStage> stages_;  // one for each channel that was used
};

}  // namespace weft::collectives
