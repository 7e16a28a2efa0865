// HierarchicalCollectives: shared memory inside each host, messages between hosts, for groups with
// several ranks on some host. Hosts may have different numbers of ranks.
//
//  - all_reduce, reduce: the data are cut into shares, as many as the smallest host has ranks;
//    small data are one share. On each host, rank i reduces share i of its host's data; the ranks
//    with the same share reduce it between the hosts; then all ranks of a host, or the root, gather
//    the shares inside the host.
//  - broadcast: between the ranks that have the root's index on their host, then inside the hosts.
//    Large data, with two ranks on each host: messages down a tree.
//  - barrier: inside the hosts, between their first ranks, inside again.
//  - all_gather, reduce_scatter, if all hosts have equally many ranks: between the ranks with the
//    same index, and inside for the parts of each host.
//  - gather, scatter, all_to_all, and otherwise the last two: messages from rank to rank, because
//    no rank in between knows the sizes, or every byte is sent only once anyway.
//
// Which operations go from rank to rank follows from the call, so ranks that called different
// operations may take different ways. Whoever runs an operation in steps finds the messages of one
// that goes from rank to rank, as far as it gets any.
//
// Threads and failure: as Collectives says. A failure of one part ends the other parts with the
// same reason, and the group cannot be used any more.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/core/op_fingerprint.h"
#include "c10d_plugin/net/hosts/host_layout.h"

namespace weft::collectives {

class HierarchicalCollectives final : public Collectives {
 public:
  struct Parts {
    std::unique_ptr<Collectives> inside;  // the ranks of this host, by HostLayout::local
    std::unique_ptr<Collectives> across;  // the ranks with the same `local`; null if >= fewest()
    std::unique_ptr<Collectives> flat;    // all ranks; on kFlatChannel
    std::shared_ptr<Mailbox> mailbox;     // under all parts that send messages
  };

  static constexpr unsigned kFlatChannel = 0;

  HierarchicalCollectives(HostLayout layout, Parts parts)
      : layout_(std::move(layout)), parts_(std::move(parts)) {}

  int rank() const noexcept override { return layout_.rank; }
  int size() const noexcept override { return parts_.mailbox->size(); }

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
  void abort(Error reason) override;
  std::vector<int> awaited() const override;
  std::vector<double> waited() const override;

 private:
  // A step of an operation, as its part sees it.
  using Step = std::function<Error(Collectives& part, const Call& call)>;

  // Before an operation in steps. A message to it from rank to rank is of a rank that called
  // something else: found now, or, while this one runs, when it comes; the mailbox then aborts.
  // False: the group has failed.
  bool beginSteps(const Call& call, Operation operation, std::uint64_t bytes, int root = 0);
  // Run a step among the ranks of this host, or between the hosts. False: the step and the
  // operation failed. `first`: the rank whose error should come first, because it knows who is
  // missing.
  bool inside(const Call& call, const Step& step, int first = 0);
  // `root_local`: the index of the operation's root on its host. `shares`: into how many shares the
  // data are cut, of which this step handles one.
  bool across(const Call& call, const Step& step, int root_local = 0, std::size_t shares = 1);
  // After an operation of parts_.flat: returns its error, which ends the group.
  Error flat(Error error);
  Error reduceTo(const Call& call, Bytes data, int root);
  bool gatherInside(const Call& call, std::size_t host, ConstBytes in, std::span<const Bytes> out);
  Error failure();

  const HostLayout layout_;
  const Parts parts_;
  std::uint64_t inside_sequence_ = 0;
  std::uint64_t across_turn_ = 0;
  std::mutex mutex_;
  Error failure_;  // the first; guarded by mutex_
};

}  // namespace weft::collectives
