// Python's values as batches, and back. All with the GIL held.
#pragma once

#include <pybind11/pybind11.h>

#include "pipe/data/batch.h"

namespace weft::pipe {

// Takes any value. Finds tensors in tuples, lists, dictionaries, named tuples and whatever is
// registered with torch.utils._pytree; a part without tensors stays one object.
Batch toBatch(pybind11::handle value);
pybind11::object toPython(const Batch& batch);

// The arguments a stage is called with: a tuple or list is spread, anything else is one argument.
pybind11::tuple toArguments(const Batch& batch);

// Adds `value`, as a part of something larger.
Structure addPart(pybind11::handle value, std::vector<at::Tensor>& tensors);

}  // namespace weft::pipe
