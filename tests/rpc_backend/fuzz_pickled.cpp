// libFuzzer: a tensor that a peer has pickled. Any bytes make one whose elements can be read, or an
// error.
#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>

#include "rpc_backend/codec/pickled_tensor.h"

namespace {
constexpr std::int64_t kMaxElements = 1 << 16;

std::int64_t elementsOf(const at::Tensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.sizes())
    if (__builtin_mul_overflow(count, size, &count)) return kMaxElements + 1;
  return count;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const at::Tensor made =
        weft::rpc::readPickledTensor({reinterpret_cast<const char*>(data), size});
    if (elementsOf(made) > kMaxElements) return 0;
    if (made.is_quantized()) {
      made.dequantize();
    } else if (made.layout() == c10::kStrided) {
      made.resolve_conj().resolve_neg().clone();
    } else {
      made.to_dense();
    }
  } catch (const c10::Error&) {
  }
  return 0;
}
