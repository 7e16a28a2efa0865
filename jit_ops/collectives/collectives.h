// torch.ops.weft's collectives on a named process group, where torch's own `_c10d_functional` does
// not serve: that has no messages, no gather, scatter or reduce to one rank and no barrier, and its
// all_reduce and broadcast take part in autograd with wrong gradients (those of a copy). Contracts:
// docs/guide/published_modules.md#collectives.
#pragma once

#include <optional>
#include <vector>

namespace torch {
class Library;
namespace jit {
struct Operator;
}
}  // namespace torch

namespace weft::ops {

// Defines them in the library "weft". Once in a process.
void defineCollectives(torch::Library& library);

// Their asynchronous forms, to register with TorchScript.
std::vector<std::optional<torch::jit::Operator>> asyncCollectives();

}  // namespace weft::ops
