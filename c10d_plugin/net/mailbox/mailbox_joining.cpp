// How a group's mailboxes find each other. Keys: `secret` (group id and key, by rank 0) and
// `address/R` (name, address and key check, a line each).
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "c10d_plugin/net/mailbox/endpoint_mailbox_impl.h"
#include "transport/auth/key_check.h"
#include "transport/io/address.h"
#include "transport/io/host_identity.h"

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

// What a rank says of itself in the Store.
struct Record {
  std::string name;
  std::string address;
  std::string key_check;  // transport::keyCheck

  std::string text() const { return name + "\n" + address + "\n" + key_check; }
  static Record parse(const std::string& text) {
    const std::size_t first = std::min(text.find('\n'), text.size());
    const std::size_t second = std::min(text.find('\n', first + 1), text.size());
    return {text.substr(0, first), text.substr(std::min(first + 1, second), second - first - 1),
            text.substr(std::min(second + 1, text.size()))};
  }
};

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
  endpoint.bulk.enabled = options.second_connection;
  // What may be queued is bounded by the windows and by what the callers keep anyway.
  endpoint.limits.max_queued_bytes = std::size_t{1} << 40;
  Result<std::unique_ptr<transport::Endpoint>> opened =
      transport::Endpoint::create(endpoint, *this);
  if (!opened.ok()) return opened.error();
  endpoint_ = std::move(opened).value();
  const std::string key_check = transport::keyCheck(endpoint.key, endpoint.group_id);
  const Record own{endpoint.name, endpoint_->address(), key_check};
  if (Error error = store.set(addressKey(rank_), own.text())) return error;
  return meet(store, key_check, deadline);
}

Error EndpointMailboxImpl::meet(KeyValue& store, const std::string& key_check, Deadline deadline) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    const Result<std::string> text = store.get(addressKey(rank), deadline);
    if (!text.ok()) {
      return {text.error().code(), "rank " + std::to_string(rank_) + " waited in vain for rank " +
                                       std::to_string(rank) + " of " + std::to_string(size()) +
                                       " to join: " + text.error().text()};
    }
    const Record record = Record::parse(text.value());
    const Result<transport::Address> parsed = transport::parseAddress(record.address);
    if (!parsed.ok()) {
      return {ErrorCode::kProtocol,
              "what rank " + std::to_string(rank) +
                  " wrote into the Store is no address: " + parsed.error().text()};
    }
    if (record.key_check != key_check) {
      return {ErrorCode::kAuthFailed,
              "rank " + std::to_string(rank_) + " and rank " + std::to_string(rank) +
                  " hold different keys; give all ranks the same file (WEFT_AUTH_KEY_FILE)"};
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
    if (Error error = endpoint_->addPeer({rank, record.name, record.address})) return error;
  }
  return Error::ok();
}

}  // namespace weft::collectives
