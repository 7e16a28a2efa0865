// HostSteps: the parts that hierarchical operations are made of, and how their steps run and fail.
//
// Threads: steps on the operating thread; abort() on any.
// Failure: the first failure ends all parts, with its reason.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/net/hosts/host_layout.h"

namespace weft::collectives {

class HostSteps {
 public:
  struct Parts {
    std::unique_ptr<Collectives> inside;  // the ranks of this host, by HostLayout::local
    std::unique_ptr<Collectives> across;  // those of `local` on each host; null from fewest() on
    std::unique_ptr<Collectives> flat;    // all ranks
    std::shared_ptr<Mailbox> mailbox;     // under `across` and `flat`
  };
  // A step of an operation, as its part sees it.
  using Step = std::function<Error(Collectives& part, const Call& call)>;

  HostSteps(const HostLayout& layout, Parts parts) : layout_(layout), parts_(std::move(parts)) {}

  int size() const noexcept { return parts_.mailbox->size(); }
  // Among the ranks of this host, and between the hosts. False: the step failed, and so has the
  // operation.
  bool inside(const Call& call, const Step& step);
  bool across(const Call& call, const Step& step);
  // All ranks, for operations without steps.
  Collectives& flat() const noexcept { return *parts_.flat; }
  // Passes an operation's error on; it ends the parts.
  Error endedBy(Error error);

  Error failure();
  void abort(const Error& reason);

 private:
  const HostLayout& layout_;
  const Parts parts_;
  std::uint64_t inside_sequence_ = 0;
  std::uint64_t across_sequence_ = 0;
  std::mutex mutex_;
  Error failure_;  // the first; guarded by mutex_
};

}  // namespace weft::collectives
