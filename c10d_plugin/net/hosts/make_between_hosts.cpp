#include "c10d_plugin/net/hosts/make_between_hosts.h"

#include <utility>
#include <vector>

#include "c10d_plugin/net/hosts/gloo_loader.h"
#include "c10d_plugin/net/hosts/hierarchical_collectives.h"
#include "c10d_plugin/net/hosts/host_layout.h"
#include "c10d_plugin/net/messages/message_collectives.h"
#include "c10d_plugin/store/all_gather.h"
#include "transport/base/log.h"

namespace weft::collectives {
namespace {

// The channels over one mailbox (net/messages/message_collectives.h).
constexpr unsigned kFlat = 0;
constexpr unsigned kInside = 1;
constexpr unsigned kAcross = 2;

Result<std::unique_ptr<Collectives>> between(const std::shared_ptr<EndpointMailbox>& mailbox,
                                             const std::vector<int>& members, unsigned channel,
                                             bool gloo) {
  if (gloo && members.size() > 1) return makeGlooCollectives(mailbox, members, channel);
  return std::unique_ptr<Collectives>(
      std::make_unique<MessageCollectives>(mailbox, members, channel));
}

Result<std::unique_ptr<Collectives>> insideHost(const std::shared_ptr<EndpointMailbox>& mailbox,
                                                KeyValue& store, const HostLayout& layout,
                                                const JoinOnHost& on_host, Deadline deadline) {
  const int size = static_cast<int>(layout.here().size());
  if (size > 1) {
    Prefixed own(store, "host" + std::to_string(layout.here()[0]) + "/");
    Result<std::unique_ptr<Collectives>> joined = on_host(own, layout.local, size);
    const auto problem = firstProblem(own, "joined", joined.ok() ? Error() : joined.error(),
                                      layout.rank, layout.here(), deadline);
    if (!problem.ok()) return problem.error();
    if (problem.value().empty()) return joined;
    transport::log(transport::LogLevel::kWarning,
                   "process group: no shared memory between the ranks of this host, messages "
                   "instead (" +
                       problem.value() + ")");
  }
  return std::unique_ptr<Collectives>(
      std::make_unique<MessageCollectives>(mailbox, layout.here(), kInside));
}

}  // namespace

Result<BetweenHosts> makeBetweenHosts(const std::shared_ptr<EndpointMailbox>& mailbox,
                                      KeyValue& store, const JoinOnHost& on_host,
                                      Deadline deadline) {
  const HostLayout layout = HostLayout::of(mailbox->hosts(), mailbox->rank());
  const std::vector<int> all = allRanks(mailbox->size());
  const auto no_gloo = firstProblem(store, "gloo", glooAvailable(), mailbox->rank(), all, deadline);
  if (!no_gloo.ok()) return no_gloo.error();
  const bool gloo = no_gloo.value().empty();
  if (!gloo) transport::log(transport::LogLevel::kInfo, "process group: " + no_gloo.value());
  const std::string how = gloo ? "Gloo over Weft" : "messages";

  BetweenHosts made;
  Result<std::unique_ptr<Collectives>> flat = between(mailbox, all, kFlat, gloo);
  if (!flat.ok()) return flat.error();
  if (layout.most() == 1) {
    made.collectives = std::move(flat).value();
    made.path = how;
    return made;
  }
  Result<std::unique_ptr<Collectives>> inside =
      insideHost(mailbox, store, layout, on_host, deadline);
  if (!inside.ok()) return inside.error();
  HostSteps::Parts parts;
  parts.inside = std::move(inside).value();
  parts.flat = std::move(flat).value();
  parts.mailbox = mailbox;
  if (layout.local < layout.fewest()) {
    auto across = between(mailbox, layout.across(layout.local), kAcross, gloo);
    if (!across.ok()) return across.error();
    parts.across = std::move(across).value();
  }
  made.collectives = std::make_unique<HierarchicalCollectives>(layout, std::move(parts));
  made.path = "shared memory inside " + std::to_string(layout.hosts.size()) + " hosts, " + how +
              " between them";
  return made;
}

}  // namespace weft::collectives
