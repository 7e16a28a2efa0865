// HierarchySteps: what the operations of HierarchicalCollectives consist of. A step is an operation
// of a smaller group: the ranks of this host, or the ranks with the same index on each host. Or an
// operation goes from rank to rank, among all.
//
// Threads: as Collectives says. A failure of one step ends all parts with the same reason, and
// nothing can be run any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/core/op_fingerprint.h"
#include "c10d_plugin/net/hosts/host_layout.h"

namespace weft::collectives {

class HierarchySteps {
 public:
  struct Parts {
    std::unique_ptr<Collectives> inside;  // the ranks of this host, by HostLayout::local
    std::unique_ptr<Collectives> across;  // the ranks with the same `local`; null if >= fewest()
    std::unique_ptr<Collectives> flat;    // all ranks; on kFlatChannel
    std::shared_ptr<Mailbox> mailbox;     // under all parts that send messages
  };
  // A step of an operation, as its part sees it.
  using Step = std::function<Error(Collectives& part, const Call& call)>;

  static constexpr unsigned kFlatChannel = 0;

  HierarchySteps(HostLayout layout, Parts parts)
      : layout_(std::move(layout)), parts_(std::move(parts)) {}

  const HostLayout& layout() const noexcept { return layout_; }
  int size() const noexcept { return parts_.mailbox->size(); }

  // Before an operation in steps. A message to it from rank to rank is of a rank that called
  // something else: found now, or, while this one runs, when it comes; the mailbox then aborts.
  // False: the group has failed.
  bool begin(const Call& call, Operation operation, std::uint64_t bytes, int root = 0);
  // Run a step among the ranks of this host, or between the hosts. False: the step and the
  // operation failed. `first`: the rank whose error should come first, because it knows who is
  // missing.
  bool inside(const Call& call, const Step& step, int first = 0);
  // `root_local`: the index of the operation's root on its host. `shares`: into how many shares the
  // data are cut, of which this step handles one.
  bool across(const Call& call, const Step& step, int root_local = 0, std::size_t shares = 1);
  // All ranks, for operations from rank to rank.
  Collectives& flat() const noexcept { return *parts_.flat; }
  // The error of such an operation ends the group. Returns it.
  Error endedBy(Error error);

  Error failure();
  void abort(const Error& reason);
  void leave() noexcept { parts_.inside->leave(); }
  std::vector<int> awaited() const;
  std::vector<double> waited() const;

 private:
  const HostLayout layout_;
  const Parts parts_;
  std::uint64_t inside_sequence_ = 0;
  std::uint64_t across_turn_ = 0;
  std::mutex mutex_;
  Error failure_;  // the first; guarded by mutex_
};

}  // namespace weft::collectives
