// Serving many small requests with one run: requests that come close together are laid one behind
// the other along dimension 0, the module runs once, and each caller gets its rows.
//
// Worth it where one run over n rows costs much less than n runs: matrix products, not element-wise
// work. The module must treat rows independently (no batch norm in training mode).
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "jit_ops/serve/servable.h"
#include "transport/base/api.h"

namespace weft::ops {

struct BatchOptions {
  std::size_t max_requests = 32;             // run when so many wait
  std::chrono::microseconds max_delay{200};  // or when the first has waited so long; at most 1 hour
};

// Batches calls of `inner`'s method "forward", whose arguments must all be tensors of at least one
// dimension with equally many rows in a request, and whose result must be a tensor, or a tuple of
// tensors, with a row for each. Requests are batched with those of the same types and shapes but
// for dimension 0; quantised, sparse and nested tensors, which cannot share a tensor with others,
// run alone. Runs without gradients. No thread of its own: the first request of a batch waits on
// its worker thread, the others leave theirs.
//
// A batch may take until the latest deadline of its requests, and is cancelled when all of them
// are. When it fails, each of its requests runs again by itself, so that only those fail that are
// at fault.
WEFT_API std::shared_ptr<Servable> batched(std::shared_ptr<Servable> inner,
                                           BatchOptions options = {});

}  // namespace weft::ops
