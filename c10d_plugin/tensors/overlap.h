// Tensors of one operation that share memory. An operation writes its outputs while it still reads
// its inputs, so an input that overlaps an output is copied first, except a rank's own share that
// is exactly in its place. Outputs that overlap are written in their order, so the last one
// remains, as with Gloo. Those of libweft.so's interface ask for no device.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "c10d_plugin/tensors/contiguous_tensor.h"
#include "transport/base/api.h"

namespace weft::process_group {

using ByteRange = std::span<const std::byte>;

inline bool same(ByteRange a, ByteRange b) { return a.data() == b.data() && a.size() == b.size(); }
bool overlap(ByteRange a, ByteRange b);

// From the first to the last byte of a tensor, with the gaps between its elements; nothing of an
// undefined one.
WEFT_API ByteRange bytesOf(const at::Tensor& tensor);

// The memory of several tensors.
class WEFT_API Occupied {
 public:
  explicit Occupied(std::vector<ByteRange> ranges);
  // No two of them share a byte.
  bool disjoint() const { return disjoint_; }
  bool overlaps(ByteRange bytes) const;

 private:
  std::vector<ByteRange> ranges_;  // by address
  bool disjoint_ = true;
};

Occupied occupied(const ContiguousTensor& flat);
Occupied occupied(const std::vector<ContiguousTensor>& flats);
WEFT_API Occupied occupied(const std::vector<at::Tensor>& tensors);

// The outputs of an operation, none of which overlaps another.
std::vector<ContiguousTensor> flattenOutputs(const std::vector<at::Tensor>& tensors);
// `in`, or a copy of it where it overlaps outputs, unless it is exactly `place`.
ContiguousTensor apart(ContiguousTensor in, const Occupied& outputs, ByteRange place = {});

}  // namespace weft::process_group
