// ChildGroups: finds or makes the backends of the groups that a group splits off or merges into.
//
// torch calls split() and merge() once for each device of the new group, with one Store object, and
// all devices get one backend. So the last backend made is found again by its name and its Store;
// another Store object means another group, even of the same name.
//
// Threads: any. A lock is held while a backend is made, which waits for its other ranks.
// Ownership: keeps neither the Store nor the backend alive. Failure: throws what `make` throws.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace weft::process_group {

class ChildGroups {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  // Makes a backend whose ranks meet through that Store.
  using Make = std::function<BackendPtr(const StorePtr& store)>;

  // `ranks`: those of the new group, numbered in the group that it is split off from.
  BackendPtr split(const std::string& group_name, const std::vector<int>& ranks,
                   const StorePtr& store, const Make& make);
  BackendPtr merge(const std::string& group_name, const StorePtr& store, const Make& make);

 private:
  struct Child {
    std::string name;
    c10::weak_intrusive_ptr<c10d::Store> store;
    c10::weak_intrusive_ptr<c10d::Backend> backend;
  };

  // --- with the lock ---
  // Null: the last backend is another one, or is gone.
  BackendPtr findLast(const std::string& name, const StorePtr& store) const;
  BackendPtr keepLast(std::string name, const StorePtr& store, BackendPtr made);

  std::mutex mutex_;  // guards what follows
  std::optional<Child> last_;
  std::map<std::string, std::uint64_t> splits_;  // how many have been made, by name and ranks
};

}  // namespace weft::process_group
