// How a group's mailboxes find each other. Keys: `secret` (group id and key, by rank 0) and
// `address/R` (name, line break, address).
#include <unistd.h>

#include <array>
#include <utility>

#include "c10d_plugin/net/endpoint_mailbox_impl.h"
#include "transport/address.h"
#include "transport/host_identity.h"

namespace weft::collectives {

using transport::AuthKey;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

namespace {

using Deadline = std::chrono::steady_clock::time_point;

struct Secret {
  std::string group_id;
  AuthKey key;
};

Result<Secret> agreeOnSecret(int rank, KeyValue& store, Deadline deadline) {
  constexpr std::size_t kHex = AuthKey::kBytes * 2;
  if (rank == 0) {
    Result<AuthKey> group = AuthKey::random();
    Result<AuthKey> key = AuthKey::random();
    if (!group.ok()) return group.error();
    if (!key.ok()) return key.error();
    if (Error error = store.set("secret", group.value().toHex() + key.value().toHex()))
      return error;
  }
  const Result<std::string> text = store.get("secret", deadline);
  if (!text.ok()) {
    return Error(text.error().code(), "rank 0 did not share the group's secret, so rank " +
                                          std::to_string(rank) +
                                          " cannot join: " + text.error().text());
  }
  if (text.value().size() != 2 * kHex)
    return Error(ErrorCode::kProtocol, "the group's secret in the Store is malformed");
  Result<AuthKey> key = AuthKey::fromHex(text.value().substr(kHex));
  if (!key.ok()) return key.error();
  return Secret{text.value().substr(0, kHex), key.value()};
}

std::string defaultName() {
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"process"};
  return std::string(host.data()) + "/" + std::to_string(::getpid());
}

std::string addressKey(int rank) { return "address/" + std::to_string(rank); }

}  // namespace

Result<std::unique_ptr<EndpointMailbox>> EndpointMailbox::join(const MailboxOptions& options,
                                                               KeyValue& store, Deadline deadline) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(options.rank) +
                                                  " is none of a group of " +
                                                  std::to_string(options.size));
  }
  auto mailbox = std::make_unique<EndpointMailboxImpl>(options);
  if (Error error = mailbox->open(store, deadline)) return error;
  return std::unique_ptr<EndpointMailbox>(std::move(mailbox));
}

Error EndpointMailboxImpl::open(KeyValue& store, Deadline deadline) {
  const MailboxOptions& options = options_;
  hosts_[static_cast<std::size_t>(rank_)] = transport::hostIdentity();
  if (size() == 1) return Error::ok();
  Result<Secret> secret = agreeOnSecret(rank_, store, deadline);
  if (!secret.ok()) return secret.error();

  transport::EndpointOptions endpoint;
  endpoint.group_id = secret.value().group_id;
  endpoint.name = options.name.empty() ? defaultName() : options.name;
  endpoint.rank = rank_;
  endpoint.key = options.key.valid() ? options.key : secret.value().key;
  endpoint.listen_address = options.listen_address;
  endpoint.unix_socket = options.unix_socket;
  endpoint.heartbeat_interval = options.heartbeat_interval;
  endpoint.peer_timeout = options.peer_timeout;
  endpoint.reconnect_timeout = options.reconnect_timeout;
  endpoint.arena.enabled = options.shared_memory;
  endpoint.lanes.enabled = options.lanes;
  // What may be queued is bounded by the windows and by what the callers keep anyway.
  endpoint.limits.max_queued_bytes = std::size_t{1} << 40;
  Result<std::unique_ptr<transport::Endpoint>> opened =
      transport::Endpoint::create(endpoint, *this);
  if (!opened.ok()) return opened.error();
  endpoint_ = std::move(opened).value();
  if (Error error = store.set(addressKey(rank_), endpoint.name + "\n" + endpoint_->address()))
    return error;
  return meet(store, deadline);
}

Error EndpointMailboxImpl::meet(KeyValue& store, Deadline deadline) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    const Result<std::string> record = store.get(addressKey(rank), deadline);
    if (!record.ok()) {
      return {record.error().code(), "rank " + std::to_string(rank_) + " waited in vain for rank " +
                                         std::to_string(rank) + " of " + std::to_string(size()) +
                                         " to join: " + record.error().text()};
    }
    const std::size_t line = record.value().find('\n');
    const std::string address =
        line == std::string::npos ? std::string() : record.value().substr(line + 1);
    const Result<transport::Address> parsed = transport::parseAddress(address);
    if (!parsed.ok()) {
      return {ErrorCode::kProtocol,
              "what rank " + std::to_string(rank) +
                  " wrote into the Store is no address: " + parsed.error().text()};
    }
    const std::string& own_host = hosts_[static_cast<std::size_t>(rank_)];
    hosts_[static_cast<std::size_t>(rank)] = parsed.value().host;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      Peer& peer = peers_[static_cast<std::size_t>(rank)];
      const bool near = !own_host.empty() && parsed.value().host == own_host;
      peer.window = near ? options_.eager_bytes_same_host : options_.eager_bytes;
      peer.credit = peer.window;
    }
    if (Error error = endpoint_->addPeer({rank, record.value().substr(0, line), address}))
      return error;
  }
  return Error::ok();
}

}  // namespace weft::collectives
