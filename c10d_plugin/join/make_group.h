// makeGroup: which Collectives and which Mailbox a group gets, by where its ranks are.
//
// Every rank decides from the same facts, which all share through the KeyValue, so all decide
// alike. Blocks until all ranks have come or the deadline passes; kTimeout names the missing ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "c10d_plugin/store/key_value.h"

namespace weft::process_group {

struct GroupParts {
  std::unique_ptr<collectives::Collectives> collectives;
  std::shared_ptr<collectives::EndpointMailbox> mailbox;
  std::string path;  // how the data travel: "shared memory", …
};

struct GroupPlace {
  int rank = 0;
  int size = 1;
  std::string interface;    // "": WEFT_SOCKET_IFNAME, else the one that reaches `master_host`
  std::string master_host;  // where the Store is served; "" when that is not known
  collectives::Deadline deadline;
  std::vector<std::string> said;  // by rank: each one's aboutThisHost()
};

// What a rank says about itself before anything else: its host, and whether it would share memory.
std::string aboutThisHost();

transport::Result<GroupParts> makeGroup(const GroupPlace& place, collectives::KeyValue& store);

}  // namespace weft::process_group
