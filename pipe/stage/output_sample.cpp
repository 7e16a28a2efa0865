#include "pipe/stage/output_sample.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft::pipe {

namespace {

constexpr std::int64_t kElements = 32;

// As at::isTensorSubclassLike(), which is true of all tensors while a dispatch mode is on.
bool isSubclassLike(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has_any(at::kTensorSubclassLike);
}

bool isReadable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
         !isSubclassLike(tensor) && !tensor.is_nested() && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor() &&
         tensor.has_storage() && tensor.numel() != 0;
}

// Number i of `count` numbers from 0 to `last`.
std::int64_t evenly(std::int64_t i, std::int64_t count, std::int64_t last) {
  if (count == 1) return 0;
  return last / (count - 1) * i + last % (count - 1) * i / (count - 1);
}

// How far into its memory the element with that number is, counted row by row.
std::int64_t offsetOf(const at::Tensor& tensor, std::int64_t number) {
  std::int64_t offset = 0;
  for (std::int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    offset += number % tensor.size(dim) * tensor.stride(dim);
    number /= tensor.size(dim);
  }
  return offset;
}

// A number as a double; of a complex number only the real part.
template <typename Number>
double toDouble(Number number) {
  if constexpr (c10::is_complex<Number>::value) {
    return static_cast<double>(number.real());
  } else {
    return static_cast<double>(number);
  }
}

template <typename Number>
double toleranceOf() {
  using Real = typename c10::scalar_value_type<Number>::type;
  return std::numeric_limits<Real>::is_integer
             ? 0
             : std::sqrt(static_cast<double>(std::numeric_limits<Real>::epsilon()));
}

bool areSame(double one, double two, double tolerance) {
  if (std::isnan(one) || std::isnan(two)) return std::isnan(one) == std::isnan(two);
  return one == two || std::abs(one - two) <= tolerance;
}

}  // namespace

OutputSample::OutputSample(const std::vector<at::Tensor>& output) {
  values_.reserve(output.size());
  for (const at::Tensor& tensor : output)
    values_.push_back(read(tensor));
}

OutputSample::Values OutputSample::read(const at::Tensor& tensor) {
  Values values;
  if (!isReadable(tensor)) return values;
  const std::int64_t last = tensor.numel() - 1;
  const std::int64_t count = std::min(kElements, tensor.numel());
  const auto read_all = [&]<typename Number>(const Number* data) {
    values.tolerance = toleranceOf<Number>();
    for (const auto i : c10::irange(count)) {
      values.elements.push_back(toDouble(data[offsetOf(tensor, evenly(i, count, last))]));
    }
  };
  switch (tensor.scalar_type()) {
#define WEFT_READ(type, name)                                    \
  case at::ScalarType::name:                                     \
    read_all(static_cast<const type*>(tensor.const_data_ptr())); \
    break;
    AT_FORALL_SCALAR_TYPES_AND3(Bool, Half, BFloat16, WEFT_READ)
    AT_FORALL_COMPLEX_TYPES(WEFT_READ)
#undef WEFT_READ
    default:
      break;
  }
  return values;
}

void OutputSample::checkRepeated(const std::vector<at::Tensor>& output, std::size_t stage) const {
  for (const auto k : c10::irange(std::min(output.size(), values_.size()))) {
    const Values& before = values_[k];
    if (before.elements.empty()) continue;
    const Values now = read(output[k]);
    double largest = 0;
    for (const double element : before.elements)
      if (std::isfinite(element)) largest = std::max(largest, std::abs(element));
    bool same = now.elements.size() == before.elements.size();
    for (std::size_t i = 0; same && i < now.elements.size(); ++i)
      same = areSame(before.elements[i], now.elements[i], before.tolerance * largest);
    TORCH_CHECK(
        same, "stage ", stage, " of a Pipe gave another value ", k,
        " when it ran again for the backward than in its forward, so the gradients would be those "
        "of another function: it depends on something that changes in between, such as a counter, "
        "a buffer or parameter that it writes, or random numbers of Python or NumPy. Let it "
        "change nothing where weft.pipe.is_recomputing() is true, or use checkpoint=\"never\".");
  }
}

}  // namespace weft::pipe
