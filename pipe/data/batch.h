// A micro-batch at a stage's border: its tensors, and how they make up what the stage takes or
// gives.
//
// What a stage gives may be a tensor, a tuple, a list, a dictionary or any nesting of them. The
// engine sees the flat list of tensors; everything else travels in the structure, untouched.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace weft::pipe {

// A Python object in a Structure's `value`. Any thread, without the GIL.
class HeldValue : public c10::ivalue::PyObjectHolder {
 public:
  // Whether Python finds it equal to what another micro-batch has in its place.
  virtual bool equals(const c10::IValue& other) const = 0;
  // For messages.
  virtual std::string description() const = 0;
};

struct Structure {
  enum class Kind : std::uint8_t {
    kTensor,  // the next of the flat list; `value` is its Python class where that is not torch's
    kValue,   // `value` itself
    kTuple,
    kList,
    kDict,    // `value` is the list of keys, `parts` are what they map to
    kCustom,  // `value` tells whoever made it how to build it of `parts`
  };
  Kind kind = Kind::kTensor;
  c10::IValue value;
  std::vector<Structure> parts;
};

struct Batch {
  std::vector<at::Tensor> tensors;
  // nullptr: the batch is one tensor.
  std::shared_ptr<const Structure> structure;
};

// As a Batch keeps it.
inline std::shared_ptr<const Structure> shared(Structure structure) {
  if (structure.kind == Structure::Kind::kTensor && structure.value.isNone()) return nullptr;
  return std::make_shared<const Structure>(std::move(structure));
}

inline const Structure& structureOf(const Batch& batch) {
  static const Structure single;
  return batch.structure ? *batch.structure : single;
}

// How one of the mini-batch's input tensors is given to the micro-batches.
enum class Scatter : std::uint8_t { kChunk, kReplicate };

// Whether autograd records what is done.
enum class History : std::uint8_t { kDrop, kRecord };

// Splits each kChunk tensor exactly as tensor.chunk(chunks) does, and gives the others to all. The
// pieces of a tensor that is there twice are the same tensors twice. Throws if the tensors give
// different counts ("different number of chunks"). Without a tensor to split there is one
// micro-batch.
std::vector<std::vector<at::Tensor>> scatter(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Scatter>& how, std::size_t chunks,
                                             History history);

// The whole mini-batch's output, and where its tensors come from.
struct Gathered {
  struct Source {
    std::vector<std::size_t> tensors;  // per micro-batch, or one: its place in that one's list
    std::int64_t micro_batch = -1;     // which, for a tensor that is not joined with others
    std::vector<std::int64_t> sizes;   // along dimension 0, per micro-batch
  };
  Batch batch;  // as many tensors as sources
  std::vector<Source> sources;
};

// A micro-batch's part of a gathered tensor's gradient.
struct GradPiece {
  std::size_t micro_batch;
  std::size_t tensor;  // its place in that one's list
  at::Tensor grad;
};
std::vector<GradPiece> split(const Gathered::Source& source, const at::Tensor& grad);

// Joins the micro-batches' outputs: tensors by concatenation along dimension 0, anything else into
// a list with one entry per micro-batch; both at the top level of a tuple, list or dictionary.
// Tensors that are the same in every micro-batch stay the same. Throws if the micro-batches
// disagree: a dictionary has the same keys in the same order in each.
Gathered gather(const std::vector<Batch>& outputs, History history);

}  // namespace weft::pipe
