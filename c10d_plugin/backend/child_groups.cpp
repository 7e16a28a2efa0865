#include "c10d_plugin/backend/child_groups.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

#include "c10d_plugin/core/ranks_text.h"

namespace weft::process_group {

ChildGroups::BackendPtr ChildGroups::findOrMake(const std::string& name, const StorePtr& store,
                                                const std::function<BackendPtr()>& make) {
  const std::shared_ptr<Child> child = [&] {
    const std::lock_guard lock(mutex_);
    std::erase_if(children_, [](const auto& entry) {
      const Child& known = *entry.second;
      if (entry.second.use_count() != 1) return false;  // a thread makes one
      const std::lock_guard own(known.mutex);           // to see what the last thread has made
      return !known.last || known.last->backend.expired();
    });
    auto& found = children_[name];
    if (!found) found = std::make_shared<Child>();
    return found;
  }();
  const std::lock_guard lock(child->mutex);
  if (child->last && child->last->store == store.get()) {
    if (auto made = child->last->backend.lock()) return made;
  }
  BackendPtr made = make();
  child->last.emplace(Made{store.get(), c10::weak_intrusive_ptr<c10d::Backend>(made)});
  return made;
}

// Without a name of their own, groups of the same ranks share a part of torch's Store. Each has an
// epoch of its own there (store/epoch.h), so it does not matter how often each rank has tried.
ChildGroups::BackendPtr ChildGroups::split(const StorePtr& store, const std::vector<int>& ranks,
                                           const OptionsPtr& opts) {
  const auto here = std::find(ranks.begin(), ranks.end(), own_.rank);
  if (here == ranks.end()) return nullptr;
  const std::string name =
      "split " + (opts ? opts->group_name : "") + collectives::ranksAsText(ranks);
  // Not those of `opts`, which torch makes of this group's own.
  const std::vector<std::uint64_t>& own = own_.global;
  std::vector<std::uint64_t> global_ranks;
  for (const int rank : ranks) {
    const auto at = static_cast<std::size_t>(rank);
    global_ranks.push_back(at < own.size() ? own[at] : at);
  }
  return findOrMake(name, store, [&] {
    return make_({store, static_cast<int>(here - ranks.begin()), static_cast<int>(ranks.size()),
                  std::move(global_ranks)},
                 opts);
  });
}

ChildGroups::BackendPtr ChildGroups::merge(const StorePtr& store, const OptionsPtr& opts, int rank,
                                           int size) {
  const std::string name = "merge " + (opts ? opts->group_name : "");
  return findOrMake(name, store, [&] {
    const auto global = opts ? opts->global_ranks_in_group : std::vector<std::uint64_t>();
    return make_({store, rank, size, global}, opts);
  });
}

ChildGroups::BackendPtr ChildGroups::shrink(const std::vector<int64_t>& excluded,
                                            const OptionsPtr& opts) {
  std::vector<int> stay;
  std::string name = "weft_without";
  for (int rank = 0; rank < own_.size; ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end()) {
      stay.push_back(rank);
    } else {
      name += "_" + std::to_string(rank);
    }
  }
  TORCH_CHECK(std::find(stay.begin(), stay.end(), own_.rank) != stay.end(), "weft: rank ",
              own_.rank, " is excluded and cannot be in the smaller group");
  return split(c10::make_intrusive<c10d::PrefixStore>(name + "/", own_.store), stay, opts);
}

}  // namespace weft::process_group
