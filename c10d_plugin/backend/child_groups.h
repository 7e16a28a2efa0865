// ChildGroups: finds or makes the backends of the groups that a group splits off or merges into.
//
// torch calls split() and merge() once for each device of the new group, with one Store object, and
// all devices get one backend. So the last backend of each name is found again by its Store;
// another Store object means another group, even of the same name.
//
// Threads: any. While one thread makes a backend, which waits for the other ranks, others of the
// same name wait for it; those of other names do not. Ownership: keeps neither the Store nor the
// backend alive. Failure: throws what `make` throws, and keeps nothing then.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace weft::process_group {

class ChildGroups {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  // The last one of that name if it was made for this Store and still is, else what `make` returns.
  BackendPtr findOrMake(const std::string& name, const StorePtr& store,
                        const std::function<BackendPtr()>& make);

 private:
  struct Made {
    c10::weak_intrusive_ptr<c10d::Store> store;
    c10::weak_intrusive_ptr<c10d::Backend> backend;
  };
  struct Child {
    std::mutex mutex;  // held while one is made
    std::optional<Made> last;
  };

  std::mutex mutex_;                       // guards the map, not what is in it
  std::map<std::string, Child> children_;  // by name
};

}  // namespace weft::process_group
