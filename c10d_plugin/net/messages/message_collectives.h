// MessageCollectives: every operation by messages alone, between any hosts.
//
// Who sends what to whom:
//  - barrier: dissemination, log2(n) rounds of empty messages.
//  - broadcast, reduce: binomial trees, in pieces that follow each other through the tree.
//  - all_reduce: small, all ranks to all (up to 8 ranks) or a tree up and down; large, each rank
//    reduces one share of each block, in rank order, and sends it to all. It sends as many bytes as
//    in a ring, 2 (n-1)/n of the data, in two steps instead of 2 (n-1).
//  - the others: pairwise, all at once, each rank beginning with the one after it.
//
// A rank that called something else ends the operation on all (kInvalidArgument, naming both); as
// after a timeout or a loss, the group cannot be used any more, because messages of the failed
// operation may still be in flight.
//
// Threads and failure: as Collectives says.
#pragma once

#include <memory>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/core/op_fingerprint.h"
#include "transport/base/spin.h"

namespace weft::collectives {

class RequestSet;

class MessageCollectives final : public Collectives {
 public:
  // Up to so many ranks, broadcast in pieces down a tree is faster than Gloo's.
  static constexpr int kFewRanks = 8;

  // Among all ranks of the mailbox.
  explicit MessageCollectives(std::shared_ptr<Mailbox> mailbox);
  // Among some of them: `members` are mailbox ranks, this process's among them, the same list on
  // all. `channel` (0…126) keeps apart what runs over one mailbox.
  MessageCollectives(std::shared_ptr<Mailbox> mailbox, std::vector<int> members, unsigned channel);

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

  // For other algorithms over the same messages.
  Mailbox& mailbox() noexcept { return *mailbox_; }
  const std::vector<int>& members() const noexcept { return members_; }
  transport::AdaptiveSpin& spin() noexcept { return spin_; }
  // The first tag of an operation's requests.
  Tag base(const Call& call) const;

 private:
  int after(int rank, int by) const { return (rank + by) % size(); }
  int before(int rank, int by) const { return (rank + size() - by) % size(); }
  std::byte* scratch(std::size_t bytes);

  Error allReduceAtOnce(const Call& call, Bytes data, const OpFingerprint& what);
  Error allReduceInShares(const Call& call, Bytes data, const OpFingerprint& what);
  // The parts of a tree: towards the root and away from it.
  bool reduceUp(RequestSet& requests, const Call& call, ConstBytes in, Bytes at_root, int root);
  bool broadcastDown(RequestSet& requests, Bytes data, int root, unsigned step);

  const std::shared_ptr<Mailbox> mailbox_;
  const std::vector<int> members_;
  const unsigned channel_;
  int rank_ = 0;
  transport::AdaptiveSpin spin_;
  // Kept between operations up to 16 MiB, so that its pages stay.
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_size_ = 0;
};

}  // namespace weft::collectives
