// The one function of libweft_cuda.so.
#pragma once

#include "c10d_plugin/backend.h"

namespace weft::process_group {

inline constexpr const char* kMakeCudaBackend = "weft_make_cuda_backend_1";
using MakeCudaBackend =
    c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                      int size, const WeftBackend::Options& options);

}  // namespace weft::process_group
