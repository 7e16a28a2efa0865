#include "c10d_plugin/net/hosts/make_collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/net/hosts/gloo_loader.h"
#include "c10d_plugin/net/hosts/hierarchical_collectives.h"
#include "c10d_plugin/net/hosts/host_layout.h"
#include "c10d_plugin/net/messages/message_collectives.h"
#include "c10d_plugin/shm/shm_collectives.h"
#include "c10d_plugin/store/all_gather.h"
#include "transport/base/log.h"

namespace weft::collectives {
namespace {

using Made = Result<std::unique_ptr<Collectives>>;

// The channels over one mailbox (net/messages/message_collectives.h).
constexpr unsigned kFlat = HierarchySteps::kFlatChannel;
constexpr unsigned kInside = 1;
constexpr unsigned kAcross = 2;
// All ranks are there by then, so a longer wait for shared memory means that something is wrong.
constexpr std::chrono::seconds kProbe{30};

// Shared memory among the ranks of this host, if it works between all of them; else null, and a log
// line says why.
Made joinShared(const transport::AuthKey& key, KeyValue& store, const HostLayout& layout,
                Deadline deadline) {
  Prefixed own(store, "host" + std::to_string(layout.here()[0]) + "/");
  const auto soon = std::min(deadline, std::chrono::steady_clock::now() + kProbe);
  Made joined = ShmCollectives::join({}, key, own, layout.local,
                                     static_cast<int>(layout.here().size()), soon);
  const auto problem = firstProblem(own, "joined", joined.ok() ? Error() : joined.error(),
                                    layout.rank, layout.here(), deadline);
  if (!problem.ok()) {
    if (joined.ok()) joined.value()->abort(problem.error());  // those that are in learn why
    return problem.error();
  }
  if (problem.value().empty()) return joined;
  transport::log(transport::LogLevel::kWarning,
                 "process group: the ranks of this host use messages instead of shared memory "
                 "(" +
                     problem.value() + ")");
  return std::unique_ptr<Collectives>();
}

Made between(const std::shared_ptr<EndpointMailbox>& mailbox, const std::vector<int>& members,
             unsigned channel, bool gloo) {
  if (gloo && members.size() > 1) return makeGlooCollectives(mailbox, members, channel);
  return std::unique_ptr<Collectives>(
      std::make_unique<MessageCollectives>(mailbox, members, channel));
}

}  // namespace

Result<MadeCollectives> makeCollectives(const std::shared_ptr<EndpointMailbox>& mailbox,
                                        KeyValue& store, Deadline deadline) {
  if (mailbox->size() == 1)
    return MadeCollectives{std::make_unique<MessageCollectives>(mailbox), "alone"};
  const std::vector<int> all = allRanks(mailbox->size());
  // A rank that shares no memory counts as a host of its own.
  const HostLayout layout = HostLayout::of(mailbox->sharing(), mailbox->rank());
  const bool one_host = HostLayout::of(mailbox->hosts(), mailbox->rank()).hosts.size() == 1;
  std::unique_ptr<Collectives> inside;
  // On one host all share memory, or none does: there is no hierarchy of one host.
  if (layout.here().size() > 1 && (!one_host || layout.hosts.size() == 1)) {
    Made joined = joinShared(mailbox->key(), store, layout, deadline);
    if (!joined.ok()) return joined.error();
    inside = std::move(joined).value();
  }
  if (one_host) {
    if (inside) return MadeCollectives{std::move(inside), "shared memory"};
    return MadeCollectives{std::make_unique<MessageCollectives>(mailbox), "messages"};
  }
  const auto no_gloo = firstProblem(store, "gloo", glooAvailable(), mailbox->rank(), all, deadline);
  if (!no_gloo.ok()) return no_gloo.error();
  const bool gloo = no_gloo.value().empty();
  if (!gloo) transport::log(transport::LogLevel::kInfo, "process group: " + no_gloo.value());
  const std::string how = gloo ? "Gloo over Weft" : "messages";

  Made flat = between(mailbox, all, kFlat, gloo);
  if (!flat.ok()) return flat.error();
  if (layout.most() == 1) return MadeCollectives{std::move(flat).value(), how};
  const std::string how_inside = inside ? "shared memory" : "messages";
  HierarchySteps::Parts parts;
  parts.inside = inside ? std::move(inside)
                        : std::make_unique<MessageCollectives>(mailbox, layout.here(), kInside);
  parts.flat = std::move(flat).value();
  parts.mailbox = mailbox;
  if (layout.local < layout.fewest()) {
    Made across = between(mailbox, layout.across(layout.local), kAcross, gloo);
    if (!across.ok()) return across.error();
    parts.across = std::move(across).value();
  }
  return MadeCollectives{std::make_unique<HierarchicalCollectives>(layout, std::move(parts)),
                         how_inside + " inside " + std::to_string(layout.hosts.size()) +
                             " hosts, " + how + " between them"};
}

}  // namespace weft::collectives
