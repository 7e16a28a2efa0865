// Serves many small requests with one run: requests that come close together are concatenated along
// dimension 0, the module runs once, and each caller gets its rows.
//
// This pays if one run over n rows costs much less than n runs, as for matrix products, but not for
// element-wise work. The module must treat rows independently (no batch norm in training mode).
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "jit_ops/serve/servable.h"
#include "transport/base/api.h"

namespace weft::ops {

struct BatchOptions {
  std::size_t max_requests = 32;             // run when so many wait,
  std::chrono::microseconds max_delay{200};  // or when the first has waited so long; at most 1 hour
};

// Batches calls of `inner`'s method "forward". All arguments must be tensors of at least one
// dimension, with equally many rows in a request; the result must be a tensor, or a tuple of
// tensors, with a row for each. Requests share a batch if their types, and their shapes except
// dimension 0, are the same. Quantised, sparse and nested tensors cannot be concatenated, and run
// alone. A batch runs without gradients. It has no thread of its own: its first request waits on a
// worker thread, the others return at once.
//
// A batch may take until the latest deadline of its requests, and is cancelled when all of them
// are. If it fails, each of its requests runs again alone, so that only those at fault fail.
WEFT_API std::shared_ptr<Servable> batched(std::shared_ptr<Servable> inner,
                                           BatchOptions options = {});

}  // namespace weft::ops
