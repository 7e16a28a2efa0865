#include "rpc_backend/rref/torch_rrefs.h"

#include <torch/csrc/distributed/rpc/rref_context.h>

namespace weft::rpc::torch_rrefs {

namespace {

using torch::distributed::rpc::RRefContext;

// An explicit instantiation may name private members ([temp.explicit]); the friend that it
// defines hands the member out.
struct Mutex {
  friend auto& member(Mutex, RRefContext&);
};
struct Owners {
  friend auto& member(Owners, RRefContext&);
};
struct Forks {
  friend auto& member(Forks, RRefContext&);
};
struct PendingUsers {
  friend auto& member(PendingUsers, RRefContext&);
};
struct ConfirmedUsers {
  friend auto& member(ConfirmedUsers, RRefContext&);
};
struct PendingChildren {
  friend auto& member(PendingChildren, RRefContext&);
};
struct NextLocalId {
  friend auto& member(NextLocalId);
};

template <typename Tag, auto Member>
struct Expose {
  friend auto& member(Tag, RRefContext& context) { return context.*Member; }
};
template <typename Tag, auto Member>
struct ExposeStatic {
  friend auto& member(Tag) { return *Member; }
};

template struct Expose<Mutex, &RRefContext::mutex_>;
template struct Expose<Owners, &RRefContext::owners_>;
template struct Expose<Forks, &RRefContext::forks_>;
template struct Expose<PendingUsers, &RRefContext::pendingUsers_>;
template struct Expose<ConfirmedUsers, &RRefContext::confirmedUsers_>;
template struct Expose<PendingChildren, &RRefContext::pendingChildren_>;
template struct ExposeStatic<NextLocalId, &RRefContext::nextLocalId_>;

RRefContext& context() { return RRefContext::getInstance(); }

}  // namespace

std::int64_t idsMade() noexcept { return member(NextLocalId{}).load(std::memory_order_relaxed); }

std::vector<Owned> owned() {
  std::vector<Owned> all;
  const std::lock_guard lock(member(Mutex{}, context()));
  const auto& forks = member(Forks{}, context());
  for (const auto& [id, rref] : member(Owners{}, context())) {
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
  const std::lock_guard lock(member(Mutex{}, context()));
  for (const auto& [fork, state] : member(PendingUsers{}, context())) {
    all.push_back({state->rref_, fromTorch(fork), false});
  }
  for (const auto& [fork, weak] : member(ConfirmedUsers{}, context())) {
    if (RRefPtr rref = weak.lock()) all.push_back({std::move(rref), fromTorch(fork), true});
  }
  return all;
}

bool hasFork(const ForkIds& ids) {
  const std::lock_guard lock(member(Mutex{}, context()));
  const auto& forks = member(Forks{}, context());
  const auto found = forks.find(toTorch(ids.value));
  return found != forks.end() && found->second.contains(toTorch(ids.fork));
}

bool hasChild(const RRefKey& fork) {
  const std::lock_guard lock(member(Mutex{}, context()));
  return member(PendingChildren{}, context()).contains(toTorch(fork));
}

}  // namespace weft::rpc::torch_rrefs
