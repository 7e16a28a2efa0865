#include "c10d_plugin/backend/child_groups.h"

namespace weft::process_group {

ChildGroups::BackendPtr ChildGroups::findOrMake(const std::string& name, const StorePtr& store,
                                                const std::function<BackendPtr()>& make) {
  Child& child = [&]() -> Child& {
    const std::lock_guard lock(mutex_);
    return children_[name];
  }();
  const std::lock_guard lock(child.mutex);
  if (child.last && child.last->store.lock() == store) {
    if (auto made = child.last->backend.lock()) return made;
  }
  BackendPtr made = make();
  child.last.emplace(c10::weak_intrusive_ptr<c10d::Store>(store),
                     c10::weak_intrusive_ptr<c10d::Backend>(made));
  return made;
}

}  // namespace weft::process_group
