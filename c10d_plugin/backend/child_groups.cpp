#include "c10d_plugin/backend/child_groups.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <utility>

#include "c10d_plugin/core/ranks_text.h"

namespace weft::process_group {

ChildGroups::BackendPtr ChildGroups::split(const std::string& group_name,
                                           const std::vector<int>& ranks, const StorePtr& store,
                                           const Make& make) {
  const std::string name = "split " + group_name + collectives::ranksAsText(ranks);
  const std::lock_guard lock(mutex_);
  if (auto made = findLast(name, store)) return made;
  // Groups of the same ranks and without names of their own share a part of torch's Store. Their
  // ranks split them off in the same order, so a count tells them apart, even after some of them
  // have ended.
  auto own = store;
  if (const std::uint64_t before = splits_[name]++; before > 0)
    own = c10::make_intrusive<c10d::PrefixStore>("again" + std::to_string(before) + "/", store);
  return keepLast(name, store, make(own));
}

ChildGroups::BackendPtr ChildGroups::merge(const std::string& group_name, const StorePtr& store,
                                           const Make& make) {
  const std::string name = "merge " + group_name;
  const std::lock_guard lock(mutex_);
  if (auto made = findLast(name, store)) return made;
  return keepLast(name, store, make(store));
}

ChildGroups::BackendPtr ChildGroups::findLast(const std::string& name,
                                              const StorePtr& store) const {
  if (!last_ || last_->name != name || last_->store.lock() != store) return nullptr;
  return last_->backend.lock();
}

ChildGroups::BackendPtr ChildGroups::keepLast(std::string name, const StorePtr& store,
                                              BackendPtr made) {
  last_.emplace(std::move(name), c10::weak_intrusive_ptr<c10d::Store>(store),
                c10::weak_intrusive_ptr<c10d::Backend>(made));
  return made;
}

}  // namespace weft::process_group
