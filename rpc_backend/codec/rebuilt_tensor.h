// Makes a tensor as the functions of torch._utils do that torch's pickler names, from arguments of
// a peer that is not trusted: the elements are within the bytes that came, the indices of a sparse
// tensor within its shape, and the scales of a quantised one fit its axis.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <string>
#include <vector>

namespace weft::rpc {

struct TypedStorage {
  c10::Storage storage;
  c10::ScalarType type;
};

// `function`: its name, "torch._utils._rebuild_tensor_v2". `args`: a tuple, in which the place of a
// storage among `storages` stands for the storage. Throws c10::Error for arguments that are wrong,
// and for other functions. Any thread.
at::Tensor rebuildTensor(const std::string& function, const at::IValue& args,
                         const std::vector<TypedStorage>& storages);

}  // namespace weft::rpc
