// Batches as TorchScript's values.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "pipe/data/batch.h"

namespace weft::pipe {

// Turns Python's values in a batch into TorchScript's; throws where TorchScript has no type for
// one.
c10::IValue toIValue(const Batch& batch);
Batch toBatch(const c10::IValue& value);
// As a part of something larger.
Structure addPart(const c10::IValue& value, std::vector<at::Tensor>& tensors);

}  // namespace weft::pipe
