#include "rpc_backend/codec/rebuilt_tensor.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstdint>

#include "rpc_backend/codec/pickled_values.h"

namespace weft::rpc {
namespace {

using namespace pickled_values;  // NOLINT(google-build-using-namespace)

// Where the elements of a tensor are.
struct Place {
  const TypedStorage& in;
  std::int64_t offset;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  at::TensorOptions options() const { return at::device(c10::kCPU).dtype(in.type); }
  // `made` has the type of elements, and none of them.
  at::Tensor as(const at::Tensor& made) const {
    check(offset >= 0 && sizes.size() == strides.size(), "its strides are not those of its shape");
    std::int64_t count = 1;
    for (const std::int64_t size : sizes)
      check(!__builtin_mul_overflow(count, size, &count), "it has too many elements");
    const auto from = static_cast<std::size_t>(offset);
    const std::size_t end = at::detail::computeStorageNbytes(sizes, strides, made.itemsize(), from);
    check(std::max(from, end) <= in.storage.nbytes(),
          "its elements are not among the bytes that came");
    return made.set_(in.storage, offset, sizes, strides);
  }
};

// (storage, offset, sizes, strides, requires_grad, hooks) and, if there are any, a dict of the bits
// that say how to read the elements.
at::Tensor denseOf(const Place& place, const std::vector<at::IValue>& parts) {
  at::Tensor made = place.as(at::empty({0}, place.options()));
  const auto bits = parts.size() > 6 ? partsOf(parts[6]) : std::vector<at::IValue>();
  for (std::size_t i = 0; i + 1 < bits.size(); i += 2) {
    check(bits[i + 1].isBool(), "a bit of it is not a bool");
    if (!bits[i + 1].toBool()) continue;
    const std::string& bit = textOf(bits[i]);
    check(bit == "conj" || bit == "neg", "a bit of it is unknown");
    made = bit == "conj" ? at::conj(made) : at::_neg_view(made);
  }
  return made;
}

// Scales or zero points, one for each index of an axis. They are copied, so there may be no more of
// them than bytes came.
const at::Tensor& channelsOf(const at::IValue& value, std::int64_t count) {
  const at::Tensor& channels = tensorOf(value);
  check(channels.dim() == 1 && channels.numel() == count && channels.is_contiguous(),
        "its scales are not those of its axis");
  return channels;
}

// As a dense one, with (scheme, scale, zero point) or (scheme, scales, zero points, axis) behind
// its strides.
at::Tensor quantisedOf(const Place& place, const std::vector<at::IValue>& parts) {
  const auto how = partsOf(parts[4], 3);
  const std::string& scheme = textOf(how[0]);
  check(c10::isQIntType(place.in.type), "its elements are not quantised");
  if (scheme == "torch.per_tensor_affine") {
    check(how[1].isDouble(), "its scale is not a number");
    return place.as(
        at::_empty_affine_quantized({0}, place.options(), how[1].toDouble(), intOf(how[2])));
  }
  check((scheme == "torch.per_channel_affine" ||
         scheme == "torch.per_channel_affine_float_qparams") &&
            how.size() > 3,
        "its scheme is unknown");
  const std::int64_t axis = intOf(how[3]);
  check(axis >= 0 && axis < static_cast<std::int64_t>(place.sizes.size()), "it has no such axis");
  const std::int64_t count = place.sizes[static_cast<std::size_t>(axis)];
  return place.as(at::_empty_per_channel_affine_quantized(
      {0}, channelsOf(how[1], count), channelsOf(how[2], count), axis, place.options()));
}

// (layout, sizes, requires_grad, indices, values), compressed layouts with two of indices.
at::Tensor sparseOf(const std::vector<at::IValue>& parts) {
  const auto layout = static_cast<c10::Layout>(intOf(parts[0]));
  const auto sizes = sizesOf(parts[1]);
  const at::Tensor& indices = tensorOf(parts[3]);
  if (layout == c10::kSparse) {
    const at::Tensor& values = tensorOf(parts[4]);
    at::_validate_sparse_coo_tensor_args(indices, values, sizes);
    return at::_sparse_coo_tensor_unsafe(indices, values, sizes, values.options().layout(layout));
  }
  check(layout == c10::kSparseCsr && parts.size() > 5, "its layout is unknown");
  const at::Tensor& columns = tensorOf(parts[4]);
  const at::Tensor& values = tensorOf(parts[5]);
  at::_validate_sparse_csr_tensor_args(indices, columns, values, sizes);
  return at::_sparse_csr_tensor_unsafe(indices, columns, values, sizes,
                                       values.options().layout(layout));
}

Place placeOf(const std::vector<at::IValue>& parts, const std::vector<TypedStorage>& storages) {
  const auto number = static_cast<std::size_t>(intOf(parts[0]));
  check(number < storages.size(), "a storage is missing");
  return {storages[number], intOf(parts[1]), sizesOf(parts[2]), sizesOf(parts[3])};
}

}  // namespace

at::Tensor rebuildTensor(const std::string& function, const at::IValue& args,
                         const std::vector<TypedStorage>& storages) {
  const auto parts = partsOf(args, 5);
  if (function == "torch._utils._rebuild_sparse_tensor") return sparseOf(parts);
  check(parts.size() > 5, "a tuple is too short");
  if (function == "torch._utils._rebuild_tensor_v2")
    return denseOf(placeOf(parts, storages), parts);
  check(function == "torch._utils._rebuild_qtensor",
        "it has a value that torch's pickler does not write");
  return quantisedOf(placeOf(parts, storages), parts);
}

}  // namespace weft::rpc
