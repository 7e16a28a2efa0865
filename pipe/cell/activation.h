// Tensors on their way from one stage to the next, and whether others share their memory, who must
// not see a change in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pipe/data/batch.h"

namespace weft::pipe {

enum class Sharing : unsigned char {
  kNone,
  kAliased,    // another value under way, or a parameter: a change in place would reach that too
  kMiniBatch,  // the caller and other micro-batches, who are to find it as it was
};

// A tensor between two cells, without history; in the backward, a gradient. Undefined: None. Two
// activations of one cell that are the same tensor arrive in the next cell as the same tensor.
struct Activation {
  at::Tensor value;
  bool differentiable = false;  // of a gradient, this and the next say nothing
  Sharing sharing = Sharing::kNone;
};

// What a stage takes or gives: its payload, then the skips that come to it or leave it
// (PipelineContext::incoming and outgoing).
struct Activations {
  std::vector<Activation> values;
  std::size_t payload_size = 0;  // how many of the values
  std::shared_ptr<const Structure> structure;
};

// Different tensors with common elements become kAliased.
void markAliases(std::vector<Activation>& values);

// Marks outputs of a stage whose change in place somebody would notice: the payload goes to the
// next stage, and the skips to `consumers`. `given`: what the stage was called with for the input,
// in the same memory or copied. `tensors`: parameters and buffers of the stage.
void markSharing(Activations& output, const Activations& input,
                 const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& tensors,
                 std::size_t stage, const std::vector<std::size_t>& consumers);

// Throws if the stage changed one of the tensors it was given, whose versions were `versions`, and
// that activation is kAliased.
void refuseSharedWrites(const Activations& input, const std::vector<at::Tensor>& given,
                        const std::vector<std::uint32_t>& versions, std::size_t stage);

}  // namespace weft::pipe
