// What the cells of one mini-batch share.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "pipe/cell/parameter_set.h"
#include "pipe/cell/pipeline_context.h"
#include "pipe/schedule/thread_policy.h"
#include "pipe/stage/saved_thread_state.h"

namespace weft::pipe {

struct MiniBatchContext {
  // `the_tensors`: per stage, what it refers to; empty if no gradients are wanted.
  MiniBatchContext(PipelineContext& the_pipeline, bool is_training,
                   std::vector<std::shared_ptr<StageTensors>> the_tensors)
      : pipeline(the_pipeline),
        training(is_training),
        tensors(std::move(the_tensors)),
        parameters(tensors, pipeline.stages.size()) {}

  PipelineContext& pipeline;
  const bool training;
  const std::vector<std::shared_ptr<StageTensors>> tensors;
  const bool grad = !tensors.empty();     // gradients are wanted at all
  const bool in_backward = isRunAgain();  // of the caller
  const SavedThreadState thread_state = SavedThreadState::here();
  const std::uint64_t number = nextMiniBatchNumber();
  ParameterSet parameters;
  std::size_t micro_batches = 0;
  // Where the graphs end that the forward made, and those that the present backward's
  // recomputations make: GradientBoundary::edges() of all parameters.
  torch::autograd::edge_list ends;
  torch::autograd::edge_list recompute_ends;
  StageTimes times{pipeline.stages.size()};  // in the present job
};

}  // namespace weft::pipe
