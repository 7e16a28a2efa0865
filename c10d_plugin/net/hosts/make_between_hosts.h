// Which Collectives a group on several hosts gets: Gloo's algorithms or plain messages between
// hosts, and a hierarchy where some host has several ranks. All ranks decide alike.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "c10d_plugin/store/key_value.h"

namespace weft::collectives {

// Makes the collectives of the ranks of one host: `rank` and `size` count them only, and `store` is
// a name space of their own.
using JoinOnHost =
    std::function<Result<std::unique_ptr<Collectives>>(KeyValue& store, int rank, int size)>;

struct BetweenHosts {
  std::unique_ptr<Collectives> collectives;
  std::string path;  // how the data travel, for logs
};

// Called by all ranks, with the same `store`; blocks until all have come, or the deadline.
// `on_host` is called on ranks that share their host; where it fails, messages take its place on
// all ranks of that host. Without Gloo on one of them, none uses it.
Result<BetweenHosts> makeBetweenHosts(const std::shared_ptr<EndpointMailbox>& mailbox,
                                      KeyValue& store, const JoinOnHost& on_host,
                                      Deadline deadline);

}  // namespace weft::collectives
