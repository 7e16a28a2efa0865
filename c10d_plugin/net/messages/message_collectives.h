// MessageCollectives: every operation by messages alone, between any hosts.
//
// The algorithms:
//  - barrier: dissemination, log2(n) rounds of empty messages.
//  - broadcast: a binomial tree, in pieces that follow each other through the tree.
//  - all_reduce, reduce: small data go from all ranks to all, or to the root. Large data are cut
//  into
//    blocks; each rank reduces one share of each block, in rank order, and sends it to all, or to
//    the root. all_reduce sends as many bytes as a ring does, 2 (n-1)/n of the data, in two steps
//    instead of 2 (n-1).
//  - reduce_scatter: the first of these two steps.
//  - the others: pairwise, all at once; each rank begins with the rank after it.
//
// If a rank called something else, the operation fails on all ranks (kInvalidArgument, naming
// both). If that rank sent a message that nobody receives, for example because it takes itself for
// the root, the next operation may be the one that fails. The group cannot be used afterwards, as
// after a timeout or a loss, because messages of the failed operation may still be in flight.
//
// Threads and failure: as Collectives says.
#pragma once

#include <memory>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/core/op_fingerprint.h"
#include "c10d_plugin/core/wait_times.h"
#include "c10d_plugin/net/messages/request_set.h"
#include "transport/base/spin.h"

namespace weft::collectives {

class MessageCollectives : public Collectives {
 public:
  // Among all ranks of the mailbox.
  explicit MessageCollectives(std::shared_ptr<Mailbox> mailbox);
  // Among some of them: `members` are mailbox ranks, including this process's, the same list on
  // all. `channel` (0…126) tells the Collectives over one mailbox apart.
  MessageCollectives(std::shared_ptr<Mailbox> mailbox, std::vector<int> members, unsigned channel);

  // The first of the RequestSet::kTags tags of an operation's messages.
  static Tag firstTag(unsigned channel, const Call& call);

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(members_.size()); }

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
  void abort(Error reason) override { mailbox_->abort(std::move(reason)); }
  // Members that any of the Collectives over the mailbox waits for.
  std::vector<int> awaited() const override;
  // Alone nobody disagrees.
  bool outlivesDifferentCalls() const noexcept override { return mailbox_->size() == 1; }
  std::vector<double> waited() const override { return wait_times_.seconds(); }

 protected:
  // The messages of one operation; for other algorithms too.
  RequestSet begin(const Call& call, const OpFingerprint& what);
  RequestSet begin(const Call& call, Operation operation,
                   std::uint64_t bytes = OpFingerprint::kVaries, int root = 0) {
    return begin(call, OpFingerprint::of(operation, call, bytes, root));
  }

 private:
  int after(int rank, int by) const { return (rank + by) % size(); }
  int before(int rank, int by) const { return (rank + size() - by) % size(); }
  bool wantsResult(int root) const { return root == kEverywhere || root == rank_; }
  std::byte* scratch(std::size_t bytes);

  Error reduceTo(const Call& call, Bytes data, int root, const OpFingerprint& what);
  Error reduceAtOnce(const Call& call, Bytes data, int root, const OpFingerprint& what);
  Error reduceInShares(const Call& call, Bytes data, int root, const OpFingerprint& what);
  // What the last two and reduce_scatter do with each block (message_reductions.cpp).
  struct Shares;
  Error reduceShares(const Call& call, const OpFingerprint& what, const Shares& shares);

  const std::shared_ptr<Mailbox> mailbox_;
  const std::vector<int> members_;
  const unsigned channel_;
  int rank_ = 0;
  transport::AdaptiveSpin spin_;
  WaitTimes wait_times_;
  // Kept between operations up to 16 MiB, so that its pages stay.
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_size_ = 0;
};

}  // namespace weft::collectives
