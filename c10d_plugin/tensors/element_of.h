// Torch's types and reductions as Element and Reduction.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "c10d_plugin/core/collectives.h"

namespace weft::process_group {

// kBytes for types that Weft moves but does not reduce (float8, quantised types).
collectives::Element elementOf(c10::ScalarType type) noexcept;

// How a reduction is carried out. PREMUL_SUM: `op` is the sum, after the factor.
// Throws c10::Error, naming both, for a type that has no such reduction.
collectives::Reduction reductionOf(const c10d::ReduceOp& op, c10::ScalarType type,
                                   const char* operation);

}  // namespace weft::process_group
