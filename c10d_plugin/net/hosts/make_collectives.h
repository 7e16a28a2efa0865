// makeCollectives: makes the Collectives that suit a group. A rank alone copies. Ranks on one host
// use shared memory, else messages. Ranks on several hosts use Gloo's algorithms or plain messages,
// in a hierarchy if some host has several ranks.
//
// All ranks call it with the same `store`; it blocks until all have come, or until the deadline.
// All decide alike: if shared memory fails between ranks of one host, all of them use messages, and
// if one rank has no Gloo, no rank uses it.
#pragma once

#include <memory>
#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "c10d_plugin/store/key_value.h"

namespace weft::collectives {

struct MadeCollectives {
  std::unique_ptr<Collectives> collectives;
  std::string path;  // how the data travel: "shared memory", …; for logs and tests
};

Result<MadeCollectives> makeCollectives(const std::shared_ptr<EndpointMailbox>& mailbox,
                                        KeyValue& store, Deadline deadline);

}  // namespace weft::collectives
