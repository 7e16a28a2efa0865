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
//    nobody in between knows the sizes, or every byte goes once anyway.
//
// Threads and failure: as Collectives says. A failure of one part ends the others, with its reason;
// whatever fails, the group is of no more use.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/net/hosts/host_layout.h"

namespace weft::collectives {

class HierarchicalCollectives final : public Collectives {
 public:
  struct Parts {
    std::unique_ptr<Collectives> inside;  // the ranks of this host, by HostLayout::local
    std::unique_ptr<Collectives> across;  // those of `local` on each host; null from fewest() on
    std::unique_ptr<Collectives> flat;    // all ranks
    std::shared_ptr<Mailbox> mailbox;     // under `across` and `flat`
  };

  HierarchicalCollectives(HostLayout layout, Parts parts);

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

 private:
  bool leads() const { return layout_.local == 0; }
  // A step of an operation, as its part sees it. False: it failed, and so has the operation.
  using Step = std::function<Error(Collectives& part, const Call& call)>;
  bool inside(const Call& call, const Step& step);
  bool across(const Call& call, const Step& step);
  Error ended();
  bool endedBy(const Error& error);
  Call sums(const Call& call) const;  // kAverage is a sum until the end
  void divide(const Call& call, Bytes data) const;
  void broadcastByLeaders(const Call& call, Bytes data, int root);
  bool treeKeepsToHosts(int root) const;
  void allReduceByLeaders(const Call& call, Bytes data);
  void allReduceByShares(const Call& call, Bytes data);

  const HostLayout layout_;
  const Parts parts_;
  std::uint64_t inside_sequence_ = 0;
  std::uint64_t across_sequence_ = 0;
  std::mutex mutex_;
  Error error_;  // the first; guarded by mutex_
};

}  // namespace weft::collectives
