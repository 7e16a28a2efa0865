// BackgroundFetch: a fetch of an RRef's value that is under way, for which nobody may wait yet.
//
// It keeps the reference until the answer has come: the owner releases a value with its last
// reference, also while a fetch waits for it. So drop() of a reference that is being fetched takes
// effect after the last of its fetches.
//
// Threads: any.
#pragma once

#include <torch/csrc/distributed/rpc/rref_impl.h>

namespace weft::ops {

class BackgroundFetch {
 public:
  using RRefPtr = c10::intrusive_ptr<torch::distributed::rpc::RRef>;

  explicit BackgroundFetch(RRefPtr rref);
  ~BackgroundFetch();
  BackgroundFetch(const BackgroundFetch&) = delete;
  BackgroundFetch& operator=(const BackgroundFetch&) = delete;

  // Drops the reference now, or after its fetches.
  static void drop(torch::distributed::rpc::RRef& rref);
  // Whether drop() was called while it was being fetched, and it still is.
  static bool isDropped(const torch::distributed::rpc::RRef& rref);

 private:
  const RRefPtr rref_;
};

}  // namespace weft::ops
