// How the mailboxes of a group find each other: each rank opens an endpoint and publishes a Record
// at "address/<rank>".
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "c10d_plugin/store/key_value.h"
#include "transport/auth/auth_key.h"
#include "transport/endpoint.h"

namespace weft::collectives {

struct MailboxOptions {
  int rank = 0;
  int size = 1;
  std::string listen_address = "127.0.0.1";  // numeric: transport::chooseListenAddress()
  std::string name;                          // in error texts; "": "host/process id"
  // The group's key. Not valid: rank 0 makes one and shares it through the KeyValue, which protects
  // the group from strangers as well as the KeyValue protects its contents.
  transport::AuthKey key;
  transport::Encryption encryption = transport::Encryption::kOff;
  transport::TlsFiles certificates;  // if any, `name` is one of the certificate's
  bool unix_socket = true;
  bool accept_other_users = false;  // on its Unix sockets
  bool shared_memory = true;
  bool second_connection = true;
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds peer_timeout{5000};
  // How long a connection that broke may take to be made again; at most peer_timeout. 0: a broken
  // connection is a lost rank.
  std::chrono::milliseconds reconnect_timeout{5000};
  // Bytes that a rank keeps for one sender at most, counting 64 for each message; equal on all.
  std::uint64_t eager_bytes = std::uint64_t{8} << 20;
  std::uint64_t eager_bytes_same_host = std::uint64_t{256} << 20;  // they lie in the sender's arena
};

struct MailboxAddress {
  std::string name;     // for error texts
  std::string address;  // transport::Endpoint::address()
  std::string host;     // transport::hostIdentity(); from `address`
  bool shares_memory = false;
};

struct OpenedEndpoint {
  std::unique_ptr<transport::Endpoint> endpoint;  // knows no peer yet
  std::vector<MailboxAddress> ranks;              // by rank
};

// Opens this rank's and waits for the others' addresses. kTimeout names the missing ranks,
// kAuthFailed one with another key, kProtocol one whose record is malformed.
transport::Result<OpenedEndpoint> openEndpoint(const MailboxOptions& options, KeyValue& store,
                                               Deadline deadline,
                                               transport::EndpointHandler& handler);

}  // namespace weft::collectives
