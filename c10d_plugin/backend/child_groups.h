// ChildGroups: the groups that a group splits off or merges into: their names, their ranks, and
// their backends, which it finds or makes.
//
// torch calls split() and merge() once for each device of the new group, with one Store object, and
// all devices get one backend. So the last backend of each name is found again by its Store;
// another Store object means another group, even of the same name.
//
// Threads: any. While one thread makes a backend, which waits for the other ranks, others of the
// same name wait for it; those of other names do not. Ownership: keeps neither the Store nor the
// backend of a child. Failure: throws what `Make` throws, and keeps nothing then.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::process_group {

class ChildGroups {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using OptionsPtr = c10::intrusive_ptr<c10d::Backend::Options>;
  // The ranks of a group, which meet through `store`.
  struct Ranks {
    StorePtr store;
    int rank = 0;
    int size = 0;
    std::vector<std::uint64_t> global;  // of its ranks; may be empty
  };
  // Makes a backend of those ranks; without options, with the parent's.
  using Make = std::function<BackendPtr(const Ranks& ranks, const OptionsPtr& opts)>;

  // `own`: the parent's.
  ChildGroups(Ranks own, Make make) : own_(std::move(own)), make_(std::move(make)) {}

  // As c10d::Backend's.
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks, const OptionsPtr& opts);
  BackendPtr merge(const StorePtr& store, const OptionsPtr& opts, int rank, int size);
  BackendPtr shrink(const std::vector<std::int64_t>& excluded, const OptionsPtr& opts);

 private:
  // The last one of that name if it was made for this Store and still is, else what `make` returns.
  BackendPtr findOrMake(const std::string& name, const StorePtr& store,
                        const std::function<BackendPtr()>& make);

  struct Made {
    const c10d::Store* store;  // which the backend holds
    c10::weak_intrusive_ptr<c10d::Backend> backend;
  };
  struct Child {
    mutable std::mutex mutex;  // held while one is made
    std::optional<Made> last;
  };

  const Ranks own_;
  const Make make_;
  std::mutex mutex_;  // guards the map, not what is in it
  // By name. Those whose backend is gone go when the next one is asked for.
  std::map<std::string, std::shared_ptr<Child>> children_;
};

}  // namespace weft::process_group
