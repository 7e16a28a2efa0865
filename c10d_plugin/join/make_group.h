// makeGroup: the Collectives and the Mailbox of a group, by where its ranks are.
//
// Every rank decides from the same facts, which all share through the KeyValue, so all decide
// alike. Blocks until all ranks have come or the deadline passes; kTimeout names the missing ranks.
#pragma once

#include <memory>
#include <string>

#include "c10d_plugin/net/hosts/make_collectives.h"
#include "c10d_plugin/store/key_value.h"

namespace weft::process_group {

struct GroupParts {
  std::shared_ptr<collectives::EndpointMailbox> mailbox;
  collectives::MadeCollectives made;
};

struct GroupPlace {
  int rank = 0;
  int size = 1;
  std::string interface;    // "": WEFT_SOCKET_IFNAME, else the one that reaches `master_host`
  std::string master_host;  // where the Store is served; "" when that is not known
  collectives::Deadline deadline;
};

transport::Result<GroupParts> makeGroup(const GroupPlace& place, collectives::KeyValue& store);

}  // namespace weft::process_group
