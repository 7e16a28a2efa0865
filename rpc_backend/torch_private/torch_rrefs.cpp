#include "rpc_backend/torch_private/torch_rrefs.h"

#include <torch/csrc/distributed/rpc/rref_context.h>

#include <mutex>
#include <utility>

#include "rpc_backend/core/private_member.h"

namespace weft::rpc::torch_rrefs {

namespace {

using torch::distributed::rpc::OwnerRRef;
using torch::distributed::rpc::RPCErrorType;
using torch::distributed::rpc::RRefContext;
using torch::distributed::rpc::UserRRef;

WEFT_PRIVATE_MEMBER(Mutex, &RRefContext::mutex_);
WEFT_PRIVATE_MEMBER(Owners, &RRefContext::owners_);
WEFT_PRIVATE_MEMBER(Forks, &RRefContext::forks_);
WEFT_PRIVATE_MEMBER(PendingOwners, &RRefContext::pendingOwners_);
WEFT_PRIVATE_MEMBER(PendingUsers, &RRefContext::pendingUsers_);
WEFT_PRIVATE_MEMBER(ConfirmedUsers, &RRefContext::confirmedUsers_);
WEFT_PRIVATE_MEMBER(PendingChildren, &RRefContext::pendingChildren_);
WEFT_PRIVATE_MEMBER(Creation, &RRef::ownerCreationFuture_);
WEFT_PRIVATE_MEMBER(SetFailed, &RRef::setTimedOut);

WEFT_PRIVATE_MEMBER(DeletedMutex, &UserRRef::deletedOnOwnerMutex_);
WEFT_PRIVATE_MEMBER(Deleted, &UserRRef::deletedOnOwner_);

RRefContext& context() { return RRefContext::getInstance(); }

}  // namespace

std::vector<Owned> owned() {
  std::vector<Owned> all;
  const std::lock_guard lock(of(context(), Mutex{}));
  const auto& forks = of(context(), Forks{});
  for (const auto& [id, rref] : of(context(), Owners{})) {
    Owned one{rref, {}};
    if (const auto found = forks.find(id); found != forks.end()) {
      for (const auto& fork : found->second)
        one.forks.push_back(fromTorch(fork));
    }
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<User> users() {
  std::vector<User> all;
  const std::lock_guard lock(of(context(), Mutex{}));
  for (const auto& [fork, state] : of(context(), PendingUsers{})) {
    const bool created = ((*state->rref_).*member(Creation{})) != nullptr;
    all.push_back({state->rref_, fromTorch(fork), false, created});
  }
  for (const auto& [fork, weak] : of(context(), ConfirmedUsers{})) {
    if (RRefPtr rref = weak.lock()) all.push_back({std::move(rref), fromTorch(fork), true, false});
  }
  return all;
}

bool wasDropped(const RRef& user) {
  // The const is torch's RRef pointer's, which the mutex is not for.
  auto& rref = const_cast<UserRRef&>(static_cast<const UserRRef&>(user));
  const std::lock_guard lock(of(rref, DeletedMutex{}));
  return of(rref, Deleted{});
}

bool hasFork(const ForkIds& ids) {
  const std::lock_guard lock(of(context(), Mutex{}));
  const auto& forks = of(context(), Forks{});
  const auto found = forks.find(toTorch(ids.value));
  return found != forks.end() && found->second.contains(toTorch(ids.fork));
}

bool hasChild(const RRefKey& fork) {
  const std::lock_guard lock(of(context(), Mutex{}));
  return of(context(), PendingChildren{}).contains(toTorch(fork));
}

void failFirst() {
  static const auto first = [] {
    auto rref = c10::make_intrusive<OwnerRRef>(0, toTorch(RRefKey{0, 0}), c10::AnyType::get(),
                                               std::vector<c10::Device>());
    rref->handleError(RPCErrorType::TIMEOUT,
                      *c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get()));
    return rref.release();
  }();
  static_cast<void>(first);
}

bool markOwnFailed(const RRefKey& value) {
  const std::lock_guard lock(of(context(), Mutex{}));
  const auto& owners = of(context(), Owners{});
  const auto found = owners.find(toTorch(value));
  if (found == owners.end()) return false;
  ((*found->second).*member(SetFailed{}))();
  return true;
}

void dropOwn(const RRefKey& value) {
  if (markOwnFailed(value)) context().delForkOfOwner(toTorch(value), toTorch(value));
}

RRefPtr markFailed(const c10::ivalue::Future& creation, const std::optional<ForkIds>& created) {
  const auto marked = [&creation](const RRefPtr& rref) {
    const bool found = ((*rref).*member(Creation{})).get() == &creation;
    if (found) ((*rref).*member(SetFailed{}))();
    return found;
  };
  const std::lock_guard lock(of(context(), Mutex{}));
  const auto& users = of(context(), PendingUsers{});
  const auto& owners = of(context(), Owners{});  // of calls to this worker itself
  if (created) {
    const auto user = users.find(toTorch(created->fork));
    if (user != users.end() && marked(user->second->rref_)) return user->second->rref_;
    const auto owner = owners.find(toTorch(created->value));
    if (owner != owners.end() && marked(owner->second)) return owner->second;
  }
  for (const auto& [fork, state] : users) {
    if (marked(state->rref_)) return state->rref_;
  }
  for (const auto& [id, rref] : owners) {
    if (marked(rref)) return rref;
  }
  return {};
}

bool isAwaited(const RRefKey& value) {
  const std::lock_guard lock(of(context(), Mutex{}));
  return of(context(), PendingOwners{}).contains(toTorch(value));
}

void failAwaited(const std::function<bool(const RRefKey&)>& which, std::exception_ptr error) {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> failed;
  {
    const std::lock_guard lock(of(context(), Mutex{}));
    std::erase_if(of(context(), PendingOwners{}), [&](const auto& awaited) {
      if (!which(fromTorch(awaited.first))) return false;
      failed.push_back(awaited.second);
      return true;
    });
  }
  for (const auto& future : failed)
    future->setErrorIfNeeded(error);
}

RRefPtr findEmpty(const RRefKey& value) {
  const std::lock_guard lock(of(context(), Mutex{}));
  const auto& owners = of(context(), Owners{});
  const auto found = owners.find(toTorch(value));
  if (found == owners.end()) return {};
  return static_cast<const OwnerRRef&>(*found->second).hasValue() ? RRefPtr() : found->second;
}

void endOwnWaits(RRef& marked, std::exception_ptr error) {
  static_cast<OwnerRRef&>(marked).setError(std::move(error));
}

}  // namespace weft::rpc::torch_rrefs
