// What the cells of one mini-batch share.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pipe/cell/pipeline_context.h"
#include "pipe/schedule/thread_policy.h"
#include "pipe/stage/saved_thread_state.h"

namespace weft::pipe {

struct MiniBatchContext {
  PipelineContext& pipeline;
  std::size_t micro_batches;
  bool training;
  bool grad;         // gradients are wanted at all
  bool in_backward;  // isRunAgain() of the caller
  SavedThreadState thread_state;
  // Per stage, what it refers to; empty if no gradients are wanted.
  std::vector<std::shared_ptr<StageTensors>> tensors;
  // Per stage, where the graphs end that the forward made, and those that the present backward's
  // recomputations make: an edge per parameter.
  std::vector<torch::autograd::edge_list> boundary;
  std::vector<torch::autograd::edge_list> recompute_boundary;
  std::uint64_t number = nextMiniBatchNumber();
  StageTimes times{pipeline.stages.size()};  // in the present job
};

}  // namespace weft::pipe
