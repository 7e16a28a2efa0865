#include "pipe/data/batch.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/irange.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <string>

#include "pipe/data/memory.h"

namespace weft::pipe {

namespace {

using Kind = Structure::Kind;

std::size_t tensorsIn(const Structure& part) {
  if (part.kind == Kind::kTensor) return 1;
  std::size_t count = 0;
  for (const Structure& inner : part.parts)
    count += tensorsIn(inner);
  return count;
}

bool hasParts(const Structure& top) {
  return top.kind != Kind::kTensor && top.kind != Kind::kValue;
}

const HeldValue& held(const c10::IValue& value) {
  return static_cast<const HeldValue&>(*value.toPyObjectHolder());
}

std::string nameOf(const Structure& part) {
  static const char* const names[] = {"a tensor", "another value", "a tuple",
                                      "a list",   "a dictionary",  "another value"};
  std::string name = names[static_cast<std::size_t>(part.kind)];
  if (hasParts(part)) name += " of " + std::to_string(part.parts.size());
  if (part.kind == Kind::kValue || part.value.isNone()) return name;
  return name + ", " +
         (part.value.isPyObject() ? held(part.value).description() : c10::str(part.value));
}

[[noreturn]] void refuse(const Structure& first, const Structure& other, std::size_t micro_batch,
                         const std::string& where) {
  TORCH_CHECK_TYPE(false, "Types for microbatch outputs do not match, found: ", nameOf(first),
                   " in micro-batch 0 and ", nameOf(other), " in micro-batch ", micro_batch, where);
}

bool areEqual(const c10::IValue& one, const c10::IValue& other) {
  if (one.isPyObject() != other.isPyObject()) return false;
  return one.isPyObject() ? held(one).equals(other) : one == other;
}

bool areAlike(const Structure& one, const Structure& other) {
  return one.kind == other.kind && one.parts.size() == other.parts.size() &&
         areEqual(one.value, other.value);
}

// Gathers part by part; `at_` is where each micro-batch's tensors of the present part begin.
class Gatherer {
 public:
  Gatherer(const std::vector<Batch>& outputs, History history)
      : outputs_(outputs), history_(history), at_(outputs.size()) {}

  // `where`: in the output, for messages.
  Structure part(const std::vector<const Structure*>& parts, const std::string& where) {
    const Structure& first = *parts[0];
    for (const auto i : c10::irange(parts.size())) {
      const Structure& other = *parts[i];
      const bool alike = first.kind == other.kind &&
                         (first.kind != Kind::kTensor || areEqual(first.value, other.value));
      if (!alike) refuse(first, other, i, where);
    }
    return first.kind == Kind::kTensor ? joined(first) : listed(parts);
  }

  Gathered result;

 private:
  at::Tensor whole(const at::Tensor& tensor) const {
    return history_ == History::kRecord ? tensor : tensor.detach();
  }

  // Where the same tensors have been joined already, or the number of sources.
  std::size_t before(const Gathered::Source& source) const {
    const auto same = [&](const Gathered::Source& other) {
      if (other.tensors.size() != source.tensors.size() || other.micro_batch >= 0) return false;
      for (const auto i : c10::irange(outputs_.size())) {
        const auto& tensors = outputs_[i].tensors;
        if (!tensors[other.tensors[i]].is_same(tensors[source.tensors[i]])) return false;
      }
      return true;
    };
    return std::find_if(result.sources.begin(), result.sources.end(), same) -
           result.sources.begin();
  }

  Structure joined(const Structure& piece) {
    std::vector<at::Tensor> pieces;
    Gathered::Source source;
    for (const auto i : c10::irange(outputs_.size())) {
      source.tensors.push_back(at_[i]);
      pieces.push_back(whole(outputs_[i].tensors[at_[i]++]));
      source.sizes.push_back(pieces.back().dim() == 0 ? 0 : pieces.back().size(0));
    }
    const std::size_t k = before(source);
    TORCH_CHECK(k < result.sources.size() || pieces.size() == 1 || pieces[0].dim() > 0,
                "outputs of micro-batches are joined along dimension 0, and one has no dimension: "
                "let the last stage give it one, or compute it of the Pipe's output");
    at::Tensor tensor = k < result.sources.size() ? result.batch.tensors[k]
                        : pieces.size() == 1      ? pieces[0]
                                                  : pipe::joined(pieces);
    result.batch.tensors.push_back(std::move(tensor));
    result.sources.push_back(std::move(source));
    return piece;
  }

  Structure listed(const std::vector<const Structure*>& parts) {
    Structure list{Kind::kList, {}, {}};
    for (const auto i : c10::irange(outputs_.size())) {
      list.parts.push_back(*parts[i]);
      for (std::size_t left = tensorsIn(*parts[i]); left != 0; --left) {
        result.sources.push_back({{at_[i]}, static_cast<std::int64_t>(i), {}});
        result.batch.tensors.push_back(whole(outputs_[i].tensors[at_[i]++]));
      }
    }
    return list;
  }

  const std::vector<Batch>& outputs_;
  const History history_;
  std::vector<std::size_t> at_;
};

// As tensor.chunk(), but autograd lets each piece be changed in place. A trace is to hold for
// inputs of other sizes, so tensor.chunk() itself is in it.
std::vector<at::Tensor> chunksOf(const at::Tensor& tensor, std::size_t chunks, History history) {
  if (history == History::kRecord && torch::jit::tracer::isTracing())
    return tensor.chunk(static_cast<std::int64_t>(chunks));
  std::vector<at::Tensor> pieces = tensor.detach().chunk(static_cast<std::int64_t>(chunks));
  if (history == History::kDrop) return pieces;
  std::int64_t begin = 0;
  for (at::Tensor& piece : pieces) {
    const std::int64_t size = piece.size(0);
    piece = tensor.narrow(0, begin, size);
    begin += size;
  }
  return pieces;
}

}  // namespace

std::vector<std::vector<at::Tensor>> scatter(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Scatter>& how, std::size_t chunks,
                                             History history) {
  const at::AutoGradMode grad(history == History::kRecord && at::GradMode::is_enabled());
  const auto firstOf = [&](std::size_t k) {
    std::size_t first = 0;
    while (!(tensors[first].is_same(tensors[k]) && how[first] == how[k]))
      ++first;
    return first;
  };
  std::vector<std::vector<at::Tensor>> pieces(tensors.size());
  std::size_t count = 0;
  for (const auto k : c10::irange(tensors.size())) {
    if (how[k] == Scatter::kReplicate) continue;
    TORCH_CHECK(tensors[k].dim() > 0,
                "an input of no dimensions cannot be split into micro-batches: wrap it in NoChunk");
    const std::size_t first = firstOf(k);
    pieces[k] = first < k ? pieces[first] : chunksOf(tensors[k], chunks, history);
    TORCH_CHECK(count == 0 || count == pieces[k].size(),
                "Found different number of chunks produced for inputs: ", count, " and ",
                pieces[k].size(),
                ". Every input tensor is split along dimension 0; wrap those "
                "that have no batch dimension in NoChunk.");
    count = pieces[k].size();
  }
  if (count == 0) count = 1;
  std::vector<std::vector<at::Tensor>> micro_batches(count);
  for (const auto i : c10::irange(count)) {
    for (const auto k : c10::irange(tensors.size())) {
      if (const std::size_t first = firstOf(k); first < k) {
        at::Tensor same = micro_batches[i][first];
        micro_batches[i].push_back(std::move(same));
      } else if (how[k] == Scatter::kChunk) {
        micro_batches[i].push_back(std::move(pieces[k][i]));
      } else if (history == History::kDrop) {
        micro_batches[i].push_back(tensors[k].detach());
      } else {
        micro_batches[i].push_back(count == 1 ? tensors[k] : tensors[k].clone());
      }
    }
  }
  return micro_batches;
}

std::vector<GradPiece> split(const Gathered::Source& source, const at::Tensor& grad) {
  if (source.micro_batch >= 0) {
    return {{static_cast<std::size_t>(source.micro_batch), source.tensors[0], grad}};
  }
  if (source.tensors.size() == 1) return {{0, source.tensors[0], grad}};
  std::vector<GradPiece> pieces;
  std::int64_t begin = 0;
  for (const auto i : c10::irange(source.tensors.size())) {
    pieces.push_back({i, source.tensors[i], grad.narrow(0, begin, source.sizes[i])});
    begin += source.sizes[i];
  }
  return pieces;
}

Gathered gather(const std::vector<Batch>& outputs, History history) {
  const at::AutoGradMode grad(history == History::kRecord && at::GradMode::is_enabled());
  Gatherer gatherer(outputs, history);
  std::vector<const Structure*> tops;
  for (const Batch& output : outputs)
    tops.push_back(&structureOf(output));
  const Structure& first = *tops[0];
  if (!hasParts(first)) {
    gatherer.result.batch.structure = shared(gatherer.part(tops, ""));
    return std::move(gatherer.result);
  }
  // A list becomes a tuple, as it does between stages.
  Structure whole{first.kind == Kind::kList ? Kind::kTuple : first.kind, first.value, {}};
  for (const auto i : c10::irange(tops.size())) {
    if (!areAlike(first, *tops[i])) refuse(first, *tops[i], i, "");
  }
  for (const auto p : c10::irange(first.parts.size())) {
    std::vector<const Structure*> parts;
    for (const Structure* top : tops)
      parts.push_back(&top->parts[p]);
    whole.parts.push_back(gatherer.part(parts, ", at value " + std::to_string(p)));
  }
  gatherer.result.batch.structure = shared(std::move(whole));
  return std::move(gatherer.result);
}

}  // namespace weft::pipe
