// LastChild: the backend that a group has split off or merged last under one name.
//
// torch calls split() and merge() once for each device of the new group, with one Store object, and
// all devices get one backend. Another Store object means another group, even of the same name.
//
// Threads: any. While one thread makes a backend, which waits for the other ranks, others of the
// same name wait for it; those of other names do not. Failure: what `make` throws; nothing is kept.
// It keeps neither the Store nor the backend alive.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <mutex>
#include <optional>

namespace weft::process_group {

class LastChild {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  // The last one if it was made for this Store and still is, else what `make` returns.
  template <typename Make>
  BackendPtr findOrMake(const StorePtr& store, const Make& make) {
    const std::lock_guard lock(mutex_);
    if (last_ && last_->store.lock() == store) {
      if (auto made = last_->backend.lock()) return made;
    }
    BackendPtr made = make();
    last_.emplace(c10::weak_intrusive_ptr<c10d::Store>(store),
                  c10::weak_intrusive_ptr<c10d::Backend>(made));
    return made;
  }

 private:
  struct Child {
    c10::weak_intrusive_ptr<c10d::Store> store;
    c10::weak_intrusive_ptr<c10d::Backend> backend;
  };
  std::mutex mutex_;  // held while one is made
  std::optional<Child> last_;
};

}  // namespace weft::process_group
