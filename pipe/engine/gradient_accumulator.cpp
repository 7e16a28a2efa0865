#include "pipe/engine/gradient_accumulator.h"

#include <c10/util/irange.h>

#include <algorithm>

namespace weft::pipe {

namespace autograd = torch::autograd;

GradientAccumulator::GradientAccumulator(const ParameterSet& parameters, const Wanted& wanted)
    : parameters_(parameters.all().size()), of_stage_(parameters.stages()) {
  bool before = std::find(wanted.inputs.begin(), wanted.inputs.end(), true) != wanted.inputs.end();
  for (const auto j : c10::irange(of_stage_.size())) {
    wants_inputs_.push_back(before);
    const auto& places = parameters.ofStage(j);
    for (const auto k : c10::irange(places.size())) {
      const std::size_t place = places[k];
      if (!wanted.parameters[place]) continue;
      autograd::Node* const accumulator =
          parameters.stagesWith(place) == 1 ? wanted.accumulators[place] : nullptr;
      of_stage_[j].push_back({place, k, accumulator, {}});
      before = true;
    }
  }
}

autograd::edge_list GradientAccumulator::wantedEdges(std::size_t stage,
                                                     const autograd::edge_list& edges) const {
  autograd::edge_list wanted;
  for (const Entry& entry : of_stage_[stage])
    wanted.push_back(edges[entry.edge]);
  return wanted;
}

bool GradientAccumulator::StageSink::take(const autograd::Node* end, at::Tensor& grad) {
  const auto it = std::find_if(edges_.begin(), edges_.end(), [&](const autograd::Edge& edge) {
    return edge.function.get() == end;
  });
  if (it == edges_.end()) return false;
  const auto k = static_cast<std::size_t>(it - edges_.begin());
  autograd::Node* const accumulator = sums_.of_stage_[stage_][k].accumulator;
  if (accumulator == nullptr) {
    sums_.add(stage_, k, std::move(grad));
  } else {
    autograd::variable_list one;
    one.push_back(std::move(grad));
    (*accumulator)(std::move(one));
  }
  return true;
}

std::vector<at::Tensor> GradientAccumulator::take() {
  std::vector<GradientSum> sums(parameters_);
  for (std::vector<Entry>& entries : of_stage_) {
    for (Entry& entry : entries)
      sums[entry.parameter].add(entry.sum.take());
  }
  std::vector<at::Tensor> result;
  result.reserve(parameters_);
  for (GradientSum& sum : sums)
    result.push_back(sum.take());
  return result;
}

}  // namespace weft::pipe
