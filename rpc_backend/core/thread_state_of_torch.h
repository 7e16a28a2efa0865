// torch's state of the calling thread, for those that read an answer or run the loop on it.
//
// Any thread.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace weft::rpc {

// Whether it is that of a new thread, except for a profiler. Only such a thread may read an answer
// or run the loop.
inline bool threadIsPlain() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_ == c10::default_included_set && keys.excluded_ == c10::default_excluded_set;
}

// Hides what is done in its scope from this thread's profiler, because it is not what the thread
// called.
class Unprofiled {
 public:
  Unprofiled() {
    if (at::hasThreadLocalCallbacks()) guard_.emplace();
  }

 private:
  std::optional<at::DisableRecordFunctionGuard> guard_;
};

}  // namespace weft::rpc
