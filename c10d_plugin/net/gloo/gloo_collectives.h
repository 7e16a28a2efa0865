// GlooCollectives: Gloo's algorithms over a Mailbox, for every element and reduction (Gloo is given
// Weft's arithmetic). MessageCollectives does reduce_scatter, gather, scatter and empty data: Gloo
// has no such reduce_scatter, needs equal parts in the other two, and at least a byte. It also does
// the all_reduce of little data among few ranks, in fewer steps.
//
// Lives in libweft_gloo.so only. Threads and failure: as Collectives says.
#pragma once

#include <gloo/context.h>

#include <functional>
#include <memory>
#include <vector>

#include "c10d_plugin/net/gloo/mailbox_context.h"
#include "c10d_plugin/net/messages/message_collectives.h"

namespace weft::collectives {

class GlooCollectives final : public Collectives {
 public:
  GlooCollectives(std::shared_ptr<Mailbox> mailbox, const std::vector<int>& members,
                  unsigned channel);

  int rank() const noexcept override { return messages_.rank(); }
  int size() const noexcept override { return messages_.size(); }

  Error barrier(const Call& call) override;
  Error broadcast(const Call& call, Bytes data, int root) override;
  Error allReduce(const Call& call, Bytes data) override;
  Error reduce(const Call& call, Bytes data, int root) override;
  Error allGather(const Call& call, ConstBytes in, std::span<const Bytes> out) override;
  Error gather(const Call& call, ConstBytes in, std::span<const Bytes> out, int root) override;
  Error scatter(const Call& call, std::span<const ConstBytes> in, Bytes out, int root) override;
  Error reduceScatter(const Call& call, std::span<const ConstBytes> in, Bytes out) override;
  Error allToAll(const Call& call, std::span<const ConstBytes> in,
                 std::span<const Bytes> out) override;
  void abort(Error reason) override { messages_.abort(std::move(reason)); }

 private:
  bool oneStepIsBetter(std::size_t bytes) const;
  // Runs one of Gloo's functions as one RequestSet.
  Error runRequests(const OpFingerprint& what, const Call& call, const std::function<void()>& run);

  MessageCollectives messages_;
  CurrentFlight current_;
  const std::shared_ptr<gloo::Context> context_;
};

}  // namespace weft::collectives
