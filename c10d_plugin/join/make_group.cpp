#include "c10d_plugin/join/make_group.h"

#include <algorithm>
#include <utility>

#include "c10d_plugin/core/solo_collectives.h"
#include "c10d_plugin/join/store_all_gather.h"
#include "c10d_plugin/net/hosts/make_between_hosts.h"
#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "c10d_plugin/net/messages/message_collectives.h"
#include "c10d_plugin/shm/shm_collectives.h"
#include "transport/base/environment.h"
#include "transport/base/log.h"
#include "transport/io/host_identity.h"
#include "transport/io/interface.h"

namespace weft::process_group {

using transport::Result;

namespace {

constexpr std::chrono::seconds kProbe{30};

bool switchedOff(const char* variable) { return environment::value(variable) == "0"; }

bool allMayShareMemory(const std::vector<std::string>& said) {
  const std::string& first = said.front();
  return first.size() > 2 && first[0] == '1' &&
         std::all_of(said.begin(), said.end(), [&](const auto& other) { return other == first; });
}

Result<std::shared_ptr<collectives::EndpointMailbox>> openMailbox(const GroupPlace& place,
                                                                  collectives::KeyValue& store) {
  const std::string wanted =
      place.interface.empty() ? environment::value(environment::kSocketIfname) : place.interface;
  auto listen = transport::chooseListenAddress(place.master_host, wanted);
  if (!listen.ok()) return listen.error();
  collectives::MailboxOptions options;
  options.rank = place.rank;
  options.size = place.size;
  options.listen_address = listen.value().address;
  options.unix_socket = !switchedOff(environment::kUnixSocket);
  options.shared_memory = !switchedOff(environment::kSharedMemory);
  options.second_connection = environment::value(environment::kTcpConnections) != "1";
  if (const std::string file = environment::value(environment::kAuthKeyFile); !file.empty()) {
    auto key = transport::AuthKey::fromFile(file);
    if (!key.ok()) return key.error();
    options.key = key.value();
  }
  auto mailbox = collectives::EndpointMailbox::join(std::move(options), store, place.deadline);
  if (!mailbox.ok()) return mailbox.error();
  return std::shared_ptr<collectives::EndpointMailbox>(std::move(mailbox).value());
}

using OneHost = std::unique_ptr<collectives::Collectives>;

// Shared memory, if it works between all ranks; null if not, which was then said.
Result<OneHost> tryShared(const GroupPlace& place, collectives::KeyValue& store) {
  // All ranks are there by now, so that a long wait would mean that something is wrong.
  const auto soon = std::min(place.deadline, std::chrono::steady_clock::now() + kProbe);
  auto joined = collectives::ShmCollectives::join({}, store, place.rank, place.size, soon);
  const std::string trouble = joined.ok() ? "" : joined.error().text();
  auto votes = collectives::storeAllGather(store, "shm_vote", trouble, place.rank, place.size,
                                           place.deadline);
  if (!votes.ok()) return votes.error();
  for (std::size_t rank = 0; rank < votes.value().size(); ++rank) {
    const std::string& other = votes.value()[rank];
    if (other.empty()) continue;
    transport::log(transport::LogLevel::kWarning,
                   "process group: no shared memory between the ranks, messages instead (rank " +
                       std::to_string(rank) + ": " + other + ")");
    return OneHost();
  }
  return std::move(joined).value();
}

bool allOnOneHost(const collectives::EndpointMailbox& mailbox) {
  const auto& hosts = mailbox.hosts();
  return !hosts.front().empty() &&
         std::all_of(hosts.begin(), hosts.end(), [&](const auto& h) { return h == hosts.front(); });
}

// How the ranks of one host among several come together.
collectives::JoinOnHost joinOnHost(const GroupPlace& place) {
  return [deadline = place.deadline](collectives::KeyValue& store, int rank,
                                     int size) -> Result<OneHost> {
    if (switchedOff(environment::kSharedMemory)) {
      return transport::Error(transport::ErrorCode::kInvalidArgument,
                              "shared memory is switched off (WEFT_SHARED_MEMORY=0)");
    }
    const auto soon = std::min(deadline, std::chrono::steady_clock::now() + kProbe);
    return collectives::ShmCollectives::join({}, store, rank, size, soon);
  };
}

}  // namespace

std::string aboutThisHost() {
  return (switchedOff(environment::kSharedMemory) ? "0 " : "1 ") + transport::hostIdentity();
}

Result<GroupParts> makeGroup(const GroupPlace& place, collectives::KeyValue& store) {
  auto mailbox = openMailbox(place, store);
  if (!mailbox.ok()) return mailbox.error();
  GroupParts parts;
  parts.mailbox = std::move(mailbox).value();
  if (place.size == 1) {
    parts.collectives = collectives::makeSoloCollectives();
    parts.path = "alone";
    return parts;
  }
  if (allMayShareMemory(place.said)) {
    auto shared = tryShared(place, store);
    if (!shared.ok()) return shared.error();
    parts.collectives = std::move(shared).value();
    parts.path = "shared memory";
  }
  if (!parts.collectives && allOnOneHost(*parts.mailbox)) {
    parts.collectives = std::make_unique<collectives::MessageCollectives>(parts.mailbox);
    parts.path = "messages";
  }
  if (!parts.collectives) {
    auto between =
        collectives::makeBetweenHosts(parts.mailbox, store, joinOnHost(place), place.deadline);
    if (!between.ok()) return between.error();
    parts.collectives = std::move(between.value().collectives);
    parts.path = std::move(between.value().path);
  }
  return parts;
}

}  // namespace weft::process_group
