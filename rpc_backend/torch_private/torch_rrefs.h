// What torch keeps private in RRefContext: which references and values this process has, and which
// of them have failed. Any thread; the results are copies and may be out of date.
//
// It names private members (private_member.h), which are the same in 2.11 to 2.15.
#pragma once

#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/wire/rref_wire.h"

namespace weft::rpc {

inline torch::distributed::rpc::GloballyUniqueId toTorch(const RRefKey& key) {
  return {static_cast<worker_id_t>(key.created_on), key.local_id};
}
inline RRefKey fromTorch(const torch::distributed::rpc::GloballyUniqueId& id) {
  return {id.createdOn_, id.localId_};
}

namespace torch_rrefs {

using torch::distributed::rpc::RRef;
using RRefPtr = c10::intrusive_ptr<RRef>;

// A value here that others refer to. Dropping the last reference to a Python value needs the GIL.
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
  bool created = false;    // by a call of this process: its end is what confirms it
};
std::vector<User> users();

// Whether this reference to another worker's value has told the owner that it is gone, as drop()
// makes it do.
bool wasDropped(const RRef& user);

bool hasFork(const ForkIds& ids);
bool hasChild(const RRefKey& fork);

// torch handles a failed creation wrongly (2.11 to 2.15, RRef::handleError): its table of handlers
// is static and keeps the reference that failed first. Each later failure writes to that one, also
// when its memory serves something else by then, and leaves its own reference as it was.
//
// This function lets a reference that is never freed fail first. Call it before a creation can
// fail.
void failFirst();
// Before `creation`, the future of a call, fails: marks the reference that it was to create, so
// that to_here() raises from now on instead of asking an owner that does not know it. `created`:
// its ids, if they are known; else all references are looked through. Nothing: torch has not noted
// the reference; it does so after the call was sent.
RRefPtr markFailed(const c10::ivalue::Future& creation, const std::optional<ForkIds>& created);
// The same for a value of this worker's own, which torch notes before it sends the call to create
// it. False: there is none.
bool markOwnFailed(const RRefKey& value);
// The same where the call is not made and no callback of torch's will run at its end: torch keeps
// the value until then. Drops it.
void dropOwn(const RRefKey& value);
// Whether somebody waits for the call that is to create that value of this worker.
bool isAwaited(const RRefKey& value);
// Values of this worker that were asked for before the call that creates them came: ends the wait
// for each one that `which` says, with the error. A creation that comes later is served all the
// same. Not on the loop thread: answers are sent.
void failAwaited(const std::function<bool(const RRefKey&)>& which, std::exception_ptr error);
// The value of this worker of that id, if a reference has come for it that torch has read, and the
// call that creates it has not ended. Null: there is none, or it has its value.
RRefPtr findEmpty(const RRefKey& value);
// After `creation` has failed: who already waits for the value that a marked reference of this
// worker was to have gets the error.
void endOwnWaits(RRef& marked, std::exception_ptr error);

}  // namespace torch_rrefs
}  // namespace weft::rpc
