// GlooCollectives: MessageCollectives with Gloo's all_reduce, in a ring, where that is as good: for
// more than kAtOnceRanks ranks, or much data. Gloo is given Weft's arithmetic and Weft's mailbox.
//
// The other operations stay with messages: Gloo's barrier, reduce and all_to_all send the same
// bytes in the same or more steps, its broadcast does not work in pieces, it has no reduce_scatter
// of this kind, and its gather and scatter need equal parts.
//
// Lives in libweft_gloo.so only. Threads and failure: as Collectives says.
#pragma once

#include <gloo/context.h>

#include <memory>
#include <vector>

#include "c10d_plugin/net/gloo/mailbox_context.h"
#include "c10d_plugin/net/messages/message_collectives.h"

namespace weft::collectives {

class GlooCollectives final : public MessageCollectives {
 public:
  GlooCollectives(std::shared_ptr<Mailbox> mailbox, const std::vector<int>& members,
                  unsigned channel);

  Error allReduce(const Call& call, Bytes data) override;

 private:
  CurrentRequests current_;
  const std::shared_ptr<gloo::Context> context_;
};

}  // namespace weft::collectives
