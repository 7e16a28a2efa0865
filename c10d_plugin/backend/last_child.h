// LastChild: the backend that a group has split off or merged last.
//
// torch calls split() and merge() once for each device of the new group, with one Store object, and
// all devices get one backend. Another Store object means another group, even of the same name.
//
// Threads: under the caller's lock. It keeps neither the Store nor the backend alive.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>
#include <string>
#include <utility>

namespace weft::process_group {

class LastChild {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  // Null: the last one is another one, or is gone.
  BackendPtr find(const std::string& name, const StorePtr& store) const {
    if (!last_ || last_->name != name || last_->store.lock() != store) return nullptr;
    return last_->backend.lock();
  }
  BackendPtr keep(std::string name, const StorePtr& store, BackendPtr made) {
    last_.emplace(std::move(name), c10::weak_intrusive_ptr<c10d::Store>(store),
                  c10::weak_intrusive_ptr<c10d::Backend>(made));
    return made;
  }

 private:
  struct Child {
    std::string name;
    c10::weak_intrusive_ptr<c10d::Store> store;
    c10::weak_intrusive_ptr<c10d::Backend> backend;
  };
  std::optional<Child> last_;
};

}  // namespace weft::process_group
