// How the mailboxes of a group find each other: each rank publishes a Record at "address/<rank>".
#pragma once

#include <string>
#include <vector>

#include "c10d_plugin/store/key_value.h"

namespace weft::collectives {

struct PeerAddress {
  std::string name;     // for error texts
  std::string address;  // transport::Endpoint::address()
  std::string host;     // transport::hostIdentity(); from `address`
};

// Publishes this rank's and waits for the others'; by rank. kTimeout names the missing ranks,
// kAuthFailed one with another key, kProtocol one whose record is malformed.
// `key_check`: transport::keyCheck() of this rank's key.
transport::Result<std::vector<PeerAddress>> meetPeers(KeyValue& store, int rank, int size,
                                                      const PeerAddress& own,
                                                      const std::string& key_check,
                                                      Deadline deadline);

}  // namespace weft::collectives
