// HierarchicalCollectives: shared memory inside each host, messages between hosts, for groups with
// several ranks on some host. Hosts may have different numbers of ranks.
//
//  - all_reduce, small: reduced inside each host to its leader (its first rank), between the
//    leaders, then broadcast inside. Large: each rank of a host reduces a share of the data of its
//    host, the ranks with the same share go between the hosts, and the shares are gathered inside.
//  - broadcast: between leaders, inside. Large, with two ranks on each host: messages down a tree.
//  - barrier, reduce, all_gather: inside, between leaders, inside.
//  - reduce_scatter: where all hosts have equally many ranks, inside by the index of the receiver
//    on its host, then between the hosts.
//  - gather, scatter, all_to_all, and reduce_scatter otherwise: messages from rank to rank, because
//    no rank in between knows the sizes, or every byte goes once anyway.
//
// Threads and failure: as Collectives says. A failure of one part ends the others, with its reason,
// and the group cannot be used any more.
#pragma once

#include <span>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/net/hosts/host_layout.h"
#include "c10d_plugin/net/hosts/host_steps.h"

namespace weft::collectives {

class HierarchicalCollectives final : public Collectives {
 public:
  HierarchicalCollectives(HostLayout layout, HostSteps::Parts parts);

  int rank() const noexcept override { return layout_.rank; }
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

 private:
  bool leads() const { return layout_.local == 0; }
  Call sums(const Call& call) const;  // kAverage is a sum until the end
  void broadcastByLeaders(const Call& call, Bytes data, int root);
  bool treeKeepsToHosts(int root) const;
  void allReduceByLeaders(const Call& call, Bytes data);
  void allReduceByShares(const Call& call, Bytes data);

  const HostLayout layout_;
  HostSteps steps_;
};

}  // namespace weft::collectives
