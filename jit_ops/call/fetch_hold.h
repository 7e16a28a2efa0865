// FetchHold: keeps a reference while a fetch of its value is under way, because the owner releases
// a value with its last reference, also while a fetch waits for it. So drop() of a reference that
// is being fetched takes effect after the last of its fetches.
//
// Threads: any.
#pragma once

#include "rpc_backend/torch_private/torch_rrefs.h"

namespace weft::ops {

class FetchHold {
 public:
  explicit FetchHold(rpc::torch_rrefs::RRefPtr rref);
  ~FetchHold();
  FetchHold(const FetchHold&) = delete;
  FetchHold& operator=(const FetchHold&) = delete;

  // Drops the reference now, or after its fetches.
  static void drop(torch::distributed::rpc::RRef& rref);
  // Whether drop() was called while it was being fetched, and it still is.
  static bool isDropped(const torch::distributed::rpc::RRef& rref);

 private:
  const rpc::torch_rrefs::RRefPtr rref_;
};

}  // namespace weft::ops
