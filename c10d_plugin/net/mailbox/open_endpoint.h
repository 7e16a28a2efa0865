// How the mailboxes of a group find each other: each rank opens an endpoint and publishes
// what the others must know of it, texts in one, at "address/<rank>".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "c10d_plugin/store/key_value.h"
#include "transport/endpoint.h"

namespace weft::collectives {

// An endpoint's options, of which openEndpoint() sets the limits and the group's id. Without a key
// rank 0 makes one and shares it through the KeyValue, which protects the group from strangers as
// well as the KeyValue protects its contents. Without a name the endpoint is "host/process id".
struct MailboxOptions : transport::EndpointOptions {
  MailboxOptions() { listen_address = "127.0.0.1"; }
  int size = 1;
  // Bytes that a rank keeps for one sender at most, counting 64 for each message; equal on all.
  std::uint64_t eager_bytes = std::uint64_t{8} << 20;
  std::uint64_t eager_bytes_same_host = std::uint64_t{256} << 20;  // they are in the sender's arena
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
  transport::AuthKey key;                         // the group's: as given, or rank 0's
};

// Opens this rank's and waits for the others' addresses. kTimeout names the missing ranks,
// kAuthFailed one with another key, kProtocol one whose record is malformed.
transport::Result<OpenedEndpoint> openEndpoint(const MailboxOptions& options, KeyValue& store,
                                               Deadline deadline,
                                               transport::EndpointHandler& handler);

}  // namespace weft::collectives
