#include "c10d_plugin/net/hosts/make_between_hosts.h"

#include <numeric>
#include <utility>
#include <vector>

#include "c10d_plugin/net/hosts/gloo_loader.h"
#include "c10d_plugin/net/hosts/hierarchical_collectives.h"
#include "c10d_plugin/net/hosts/host_layout.h"
#include "c10d_plugin/net/messages/message_collectives.h"
#include "transport/base/log.h"

namespace weft::collectives {
namespace {

// What runs over one mailbox; net/message_collectives.h.
constexpr unsigned kFlat = 0;
constexpr unsigned kInside = 1;
constexpr unsigned kAcross = 2;

class Prefixed final : public KeyValue {
 public:
  Prefixed(KeyValue& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  Error set(const std::string& key, const std::string& value) override {
    return store_.set(prefix_ + key, value);
  }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    return store_.get(prefix_ + key, deadline);
  }

 private:
  KeyValue& store_;
  const std::string prefix_;
};

// What each of `ranks` says about `topic`.
Result<std::vector<std::string>> ask(KeyValue& store, const std::string& topic, int rank,
                                     const std::vector<int>& ranks, const std::string& own,
                                     Deadline deadline) {
  if (Error error = store.set(topic + "/" + std::to_string(rank), own)) return error;
  std::vector<std::string> said;
  for (const int other : ranks) {
    Result<std::string> word = store.get(topic + "/" + std::to_string(other), deadline);
    if (!word.ok()) return word.error();
    said.push_back(std::move(word).value());
  }
  return said;
}

std::string firstTrouble(const std::vector<std::string>& said) {
  for (const std::string& word : said)
    if (word != "well") return word;
  return {};
}

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
    const auto said = ask(own, "joined", layout.rank, layout.here(),
                          joined.ok() ? "well" : joined.error().text(), deadline);
    if (!said.ok()) return said.error();
    const std::string trouble = firstTrouble(said.value());
    if (trouble.empty()) return joined;
    transport::log(transport::LogLevel::kWarning,
                   "process group: no shared memory between the ranks of this host, messages "
                   "instead (" +
                       trouble + ")");
  }
  return std::unique_ptr<Collectives>(
      std::make_unique<MessageCollectives>(mailbox, layout.here(), kInside));
}

}  // namespace

Result<BetweenHosts> makeBetweenHosts(const std::shared_ptr<EndpointMailbox>& mailbox,
                                      KeyValue& store, const JoinOnHost& on_host,
                                      Deadline deadline) {
  const HostLayout layout = HostLayout::of(mailbox->hosts(), mailbox->rank());
  std::vector<int> all(static_cast<std::size_t>(mailbox->size()));
  std::iota(all.begin(), all.end(), 0);

  const Error missing = glooAvailable();
  const auto said =
      ask(store, "gloo", mailbox->rank(), all, missing ? missing.text() : "well", deadline);
  if (!said.ok()) return said.error();
  const std::string no_gloo = firstTrouble(said.value());
  if (!no_gloo.empty()) transport::log(transport::LogLevel::kInfo, "process group: " + no_gloo);
  const bool gloo = no_gloo.empty();
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
  HierarchicalCollectives::Parts parts;
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
