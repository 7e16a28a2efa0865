#include "jit_ops/serve/plain_errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/cpp_stacktraces.h>

#include <typeinfo>

namespace weft::ops {

namespace {

// A new object: others may hold the one in flight, as the error of a future.
template <typename Type>
void throwIf(const c10::Error& error) {
  if (typeid(error) == typeid(Type))
    throw Type(error.what_without_backtrace(), nullptr, error.caller());
}

template <typename... Types>
void throwOneOf(const c10::Error& error) {
  (throwIf<Types>(error), ...);
}

}  // namespace

void throwWithoutStack(const c10::Error& error) {
  if (!torch::get_cpp_stacktraces_enabled()) {
    throwOneOf<c10::Error, c10::IndexError, c10::ValueError, c10::TypeError,
               c10::NotImplementedError, c10::OutOfMemoryError, c10::LinAlgError, c10::DistError,
               c10::DistBackendError, c10::DistStoreError, c10::DistNetworkError>(error);
  }
  throw;
}

}  // namespace weft::ops
