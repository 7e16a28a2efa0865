#include "pipe/data/memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/cat.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

namespace weft::pipe {

namespace {

// One dimension of two tensors with equal strides: by how many steps their indices may differ.
struct Dimension {
  std::int64_t stride;
  std::int64_t low;
  std::int64_t high;
};

std::int64_t floorDiv(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Whether some index difference is `distance` elements long. Largest strides first, so that few
// steps of each dimension leave a rest that the others can make up.
bool reaches(std::int64_t distance, const Dimension* dimension, const Dimension* end) {
  if (dimension == end) return distance == 0;
  std::int64_t low = 0;
  std::int64_t high = 0;  // of the rest
  for (const Dimension* next = dimension + 1; next != end; ++next) {
    low += next->low * next->stride;
    high += next->high * next->stride;
  }
  const std::int64_t first =
      std::max(dimension->low, -floorDiv(-(distance - high), dimension->stride));
  const std::int64_t last = std::min(dimension->high, floorDiv(distance - low, dimension->stride));
  constexpr std::int64_t kFew = 4;
  if (last - first >= kFew) return true;  // not laid out as a tensor's dimensions usually are
  for (std::int64_t steps = first; steps <= last; ++steps) {
    if (reaches(distance - steps * dimension->stride, dimension + 1, end)) return true;
  }
  return false;
}

// Whether two ranges meet, of which the other begins `distance` bytes after the one.
bool meet(std::intptr_t distance, std::size_t one, std::size_t other) {
  return distance < static_cast<std::intptr_t>(one) &&
         -distance < static_cast<std::intptr_t>(other);
}

std::intptr_t addressOf(const c10::StorageImpl& storage) {
  return reinterpret_cast<std::intptr_t>(storage.data());
}

// Whether two storages are in one memory, as those of torch.from_numpy(). On "meta" there is none.
bool overlap(const c10::StorageImpl& one, const c10::StorageImpl& other) {
  return one.data() != nullptr && one.device() == other.device() &&
         meet(addressOf(other) - addressOf(one), one.nbytes(), other.nbytes());
}

// The bytes from the first element to the end of the last one.
std::size_t extentOf(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

// Leaves inference mode, but stays without gradients.
class KeepsTangents {
 public:
  explicit KeepsTangents(bool wanted) {
    if (!wanted || !c10::InferenceMode::is_enabled()) return;
    normal_.emplace(false);
    no_grad_.emplace();
  }

 private:
  std::optional<c10::InferenceMode> normal_;
  std::optional<at::NoGradGuard> no_grad_;
};

}  // namespace

const c10::StorageImpl* memoryOf(const at::Tensor& tensor) {
  return !tensor.defined() || !tensor.has_storage()
             ? nullptr
             : tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

bool shareStorage(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const void*> seen;
  return std::ranges::any_of(tensors, [&](const at::Tensor& tensor) {
    if (tensor.is_mkldnn()) return false;  // its memory is its own
    const at::Tensor dense = tensor.layout() == at::kStrided ? tensor
                             : tensor.is_sparse()            ? tensor._values()
                                                             : tensor.values();
    const void* const place = dense.storage().data();
    return place != nullptr && !seen.insert(place).second;  // none on "meta"
  });
}

std::size_t firstSame(const std::vector<at::Tensor>& tensors, std::size_t k) {
  std::size_t first = 0;
  while (!tensors[first].is_same(tensors[k]))
    ++first;
  return first;
}

at::Tensor copyOf(const at::Tensor& tensor) {
  const KeepsTangents guard(!tensor.is_inference());
  return tensor.clone();
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  const KeepsTangents guard(
      std::none_of(tensors.begin(), tensors.end(),
                   [](const at::Tensor& tensor) { return tensor.is_inference(); }));
  return at::cat(tensors);
}

bool mayOverlap(const at::Tensor& one, const at::Tensor& other) {
  const c10::StorageImpl* const memory = memoryOf(one);
  const c10::StorageImpl* const others = memoryOf(other);
  if (memory == nullptr || others == nullptr) return false;
  const bool plain = !at::isTensorSubclassLike(one) && !at::isTensorSubclassLike(other);
  if (memory != others && !(plain && overlap(*memory, *others))) return false;
  if (one.numel() == 0 || other.numel() == 0) return false;
  if (!plain) return true;
  const auto size = static_cast<std::intptr_t>(one.itemsize());
  const std::intptr_t distance =
      addressOf(*others) - addressOf(*memory) +
      other.storage_offset() * static_cast<std::intptr_t>(other.itemsize()) -
      one.storage_offset() * size;
  if (!meet(distance, extentOf(one), extentOf(other))) return false;
  if (one.scalar_type() != other.scalar_type() || one.strides() != other.strides() ||
      distance % size != 0) {
    return true;
  }
  std::vector<Dimension> dimensions;
  for (const auto d : c10::irange(one.dim())) {
    if (one.stride(d) == 0) continue;
    dimensions.push_back({one.stride(d), 1 - other.size(d), one.size(d) - 1});
  }
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride > b.stride; });
  return reaches(distance / size, dimensions.data(), dimensions.data() + dimensions.size());
}

std::uint32_t versionOf(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_inference() ? 0 : tensor._version();
}

std::vector<std::uint32_t> versionsOf(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint32_t> versions;
  versions.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    versions.push_back(versionOf(tensor));
  return versions;
}

}  // namespace weft::pipe
