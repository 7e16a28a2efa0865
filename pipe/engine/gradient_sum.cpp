#include "pipe/engine/gradient_sum.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/grad_mode.h>

#include <utility>

namespace weft::pipe {

namespace {

// A gradient as it comes from autograd may be shared with another, and must not be added to then.
// A weight's is often a view (a transposed product, of nn.Linear) whose base only it holds.
bool isUnshared(const at::Tensor& grad) {
  if (grad.layout() != at::kStrided || at::isTensorSubclassLike(grad) || !grad.has_storage() ||
      !grad.is_non_overlapping_and_dense() || grad.use_count() != 1) {
    return false;
  }
  const bool is_view = !grad.is_inference() && grad.is_view();
  if (is_view && grad._base().use_count() != 1) return false;
  return grad.storage().use_count() == (is_view ? 2 : 1);
}

}  // namespace

void GradientSum::add(at::Tensor part) {
  if (!part.defined()) return;
  const at::NoGradGuard no_grad;
  if (!sum_.defined()) {
    owned_ = isUnshared(part);
    sum_ = std::move(part);
  } else if (owned_ && (!sum_.is_sparse() || part.is_sparse())) {
    sum_.add_(part);
  } else {
    // A sparse tensor can be added to a dense one, and not the other way round.
    sum_ = sum_.is_sparse() && !part.is_sparse() ? part + sum_ : sum_ + part;
    owned_ = true;
  }
}

}  // namespace weft::pipe
