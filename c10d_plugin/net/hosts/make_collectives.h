// makeCollectives: which Collectives a group gets. A rank alone copies; on one host shared memory,
// or messages; between hosts Gloo's algorithms or plain messages, and a hierarchy where some host
// has several ranks.
//
// Called by all ranks, with the same `store`; blocks until all have come, or the deadline. All
// decide alike: where shared memory fails between ranks of one host, messages take its place on all
// of them, and without Gloo on one rank, none uses it.
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
