#include "c10d_plugin/tensors/overlap.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace weft::process_group {

bool overlap(ByteRange a, ByteRange b) {
  const std::less<const std::byte*> before;  // a total order, also of unrelated addresses
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

ByteRange bytesOf(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return {};
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize())};
}

Occupied::Occupied(std::vector<ByteRange> ranges) : ranges_(std::move(ranges)) {
  std::erase_if(ranges_, [](ByteRange range) { return range.empty(); });
  std::sort(ranges_.begin(), ranges_.end(), [](ByteRange a, ByteRange b) {
    return std::less<const std::byte*>()(a.data(), b.data());
  });
  disjoint_ = std::adjacent_find(ranges_.begin(), ranges_.end(), overlap) == ranges_.end();
}

Occupied occupied(const ContiguousTensor& flat) { return Occupied({ByteRange(flat.bytes())}); }

Occupied occupied(const std::vector<ContiguousTensor>& flats) {
  std::vector<ByteRange> ranges;
  for (const ContiguousTensor& flat : flats)
    ranges.emplace_back(flat.bytes());
  return Occupied(std::move(ranges));
}

Occupied occupied(const std::vector<at::Tensor>& tensors) {
  std::vector<ByteRange> ranges;
  for (const at::Tensor& tensor : tensors)
    ranges.push_back(bytesOf(tensor));
  return Occupied(std::move(ranges));
}

bool Occupied::overlaps(ByteRange bytes) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](ByteRange range) { return overlap(range, bytes); });
}

std::vector<ContiguousTensor> flattenOutputs(const std::vector<at::Tensor>& tensors) {
  std::vector<ContiguousTensor> flats;
  flats.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    flats.emplace_back(tensor, ContiguousTensor::Use::kWrite);
  if (occupied(flats).disjoint()) return flats;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    flats[i] = ContiguousTensor::elsewhere(tensors[i]);
  return flats;
}

ContiguousTensor apart(ContiguousTensor in, const Occupied& outputs, ByteRange place) {
  if (same(in.bytes(), place) || !outputs.overlaps(in.bytes())) return in;
  return {copyOf(in.memory()), at::Tensor()};
}

}  // namespace weft::process_group
