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
// Threads and failure: as Collectives and HierarchySteps say.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/net/hosts/hierarchy_steps.h"

namespace weft::collectives {

class HierarchicalCollectives final : public Collectives {
 public:
  HierarchicalCollectives(HostLayout layout, HierarchySteps::Parts parts)
      : steps_(std::move(layout), std::move(parts)) {}

  int rank() const noexcept override { return layout().rank; }
  int size() const noexcept override { return steps_.size(); }

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
  void abort(Error reason) override { steps_.abort(reason); }
  void leave() noexcept override { steps_.leave(); }
  std::vector<int> awaited() const override { return steps_.awaited(); }
  std::vector<double> waited() const override { return steps_.waited(); }

 private:
  const HostLayout& layout() const noexcept { return steps_.layout(); }
  Error reduceTo(const Call& call, Bytes data, int root);
  bool gatherInside(const Call& call, std::size_t host, ConstBytes in, std::span<const Bytes> out);

  HierarchySteps steps_;
};

}  // namespace weft::collectives
