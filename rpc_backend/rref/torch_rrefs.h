// What torch's RRefContext knows and has no accessor for: which references and values this process
// has. Read only. Any thread; what is returned is a copy, and may be old when it is looked at.
//
// The names of RRefContext's private members are used (torch_rrefs.cpp); they have been the same in
// 2.11 to 2.15, and another name would not compile.
#pragma once

#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <vector>

#include "rpc_backend/wire/rref_wire.h"

namespace weft::rpc {

inline torch::distributed::rpc::GloballyUniqueId toTorch(const RRefKey& key) {
  return {static_cast<torch::distributed::rpc::worker_id_t>(key.created_on), key.local_id};
}
inline RRefKey fromTorch(const torch::distributed::rpc::GloballyUniqueId& id) {
  return {id.createdOn_, id.localId_};
}

namespace torch_rrefs {

using RRefPtr = c10::intrusive_ptr<torch::distributed::rpc::RRef>;

// Ids made by this process so far: grows with each RRef that is pickled. Costs one load.
std::int64_t idsMade() noexcept;

// A value here that others refer to. Whoever drops the last reference to a Python value
// needs the GIL.
struct Owned {
  RRefPtr rref;
  std::vector<RRefKey> forks;
};
std::vector<Owned> owned();

// This process's references to values of others.
struct User {
  RRefPtr rref;
  RRefKey fork;
  bool confirmed = false;  // by the owner
};
std::vector<User> users();

bool hasFork(const ForkIds& ids);
bool hasChild(const RRefKey& fork);

}  // namespace torch_rrefs
}  // namespace weft::rpc
