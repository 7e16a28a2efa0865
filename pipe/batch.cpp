#include "pipe/batch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/irange.h>

namespace weft::pipe {

namespace {

using Kind = Structure::Kind;

const Structure& structureOf(const Batch& batch) {
  static const Structure single;
  return batch.structure ? *batch.structure : single;
}

std::size_t tensorsIn(const Structure& part) {
  if (part.kind == Kind::kTensor) return 1;
  std::size_t count = 0;
  for (const Structure& inner : part.parts)
    count += tensorsIn(inner);
  return count;
}

bool hasParts(const Structure& top) {
  return top.kind == Kind::kTuple || top.kind == Kind::kList || top.kind == Kind::kDict ||
         top.kind == Kind::kCustom;
}

const char* nameOf(Kind kind) {
  switch (kind) {
    case Kind::kTensor:
      return "a tensor";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kList:
      return "a list";
    case Kind::kDict:
      return "a dictionary";
    default:
      return "another value";
  }
}

// Gathers part by part; `at` is where each micro-batch's tensors of the present part begin.
class Gatherer {
 public:
  explicit Gatherer(const std::vector<Batch>& outputs) : outputs_(outputs), at_(outputs.size()) {}

  Structure part(const std::vector<const Structure*>& parts) {
    for (const Structure* part : parts) {
      TORCH_CHECK_TYPE(part->kind == parts[0]->kind,
                       "Types for microbatch outputs do not match, found: ", nameOf(parts[0]->kind),
                       " and ", nameOf(part->kind));
    }
    return parts[0]->kind == Kind::kTensor ? joined() : listed(parts);
  }

  Gathered result;

 private:
  Structure joined() {
    std::vector<at::Tensor> pieces;
    Gathered::Source source;
    for (const auto i : c10::irange(outputs_.size())) {
      source.tensors.push_back(at_[i]);
      pieces.push_back(outputs_[i].tensors[at_[i]++].detach());
      source.sizes.push_back(pieces.back().dim() == 0 ? 0 : pieces.back().size(0));
    }
    result.batch.tensors.push_back(pieces.size() == 1 ? pieces[0] : at::cat(pieces));
    result.sources.push_back(std::move(source));
    return {};
  }

  Structure listed(const std::vector<const Structure*>& parts) {
    Structure list{Kind::kList, {}, {}};
    for (const auto i : c10::irange(outputs_.size())) {
      list.parts.push_back(*parts[i]);
      for (std::size_t left = tensorsIn(*parts[i]); left != 0; --left) {
        result.sources.push_back({{at_[i]}, static_cast<std::int64_t>(i), {}});
        result.batch.tensors.push_back(outputs_[i].tensors[at_[i]++].detach());
      }
    }
    return list;
  }

  const std::vector<Batch>& outputs_;
  std::vector<std::size_t> at_;
};

}  // namespace

std::vector<std::vector<at::Tensor>> scatter(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Scatter>& how, std::size_t chunks) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> pieces(tensors.size());
  std::size_t count = 0;
  for (const auto k : c10::irange(tensors.size())) {
    if (how[k] == Scatter::kReplicate) continue;
    pieces[k] = tensors[k].detach().chunk(static_cast<std::int64_t>(chunks));
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
      micro_batches[i].push_back(how[k] == Scatter::kChunk ? std::move(pieces[k][i])
                                                           : tensors[k].detach());
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

Gathered gather(const std::vector<Batch>& outputs) {
  const at::NoGradGuard no_grad;
  Gatherer gatherer(outputs);
  std::vector<const Structure*> tops;
  for (const Batch& output : outputs)
    tops.push_back(&structureOf(output));
  const Structure& first = *tops[0];
  if (!hasParts(first)) {
    Structure whole = gatherer.part(tops);
    if (whole.kind != Kind::kTensor) {
      gatherer.result.batch.structure = std::make_shared<Structure>(std::move(whole));
    }
    return std::move(gatherer.result);
  }
  // A list becomes a tuple, as it does between stages.
  auto whole = std::make_shared<Structure>(
      Structure{first.kind == Kind::kList ? Kind::kTuple : first.kind, first.value, {}});
  for (const Structure* top : tops) {
    TORCH_CHECK_TYPE(top->kind == first.kind && top->parts.size() == first.parts.size(),
                     "Types for microbatch outputs do not match, found: ", nameOf(first.kind),
                     " of ", first.parts.size(), " and ", nameOf(top->kind), " of ",
                     top->parts.size());
  }
  for (const auto p : c10::irange(first.parts.size())) {
    std::vector<const Structure*> parts;
    for (const Structure* top : tops)
      parts.push_back(&top->parts[p]);
    whole->parts.push_back(gatherer.part(parts));
  }
  gatherer.result.batch.structure = std::move(whole);
  return std::move(gatherer.result);
}

}  // namespace weft::pipe
