// The parameters of a mini-batch that require a gradient: each once, whatever number of stages has
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pipe/stage/stage.h"

namespace weft::pipe {

struct ParameterSet {
  // `tensors`: what each stage refers to; empty if no gradients are wanted.
  ParameterSet(const std::vector<std::shared_ptr<StageTensors>>& tensors, std::size_t stages);

  // Remembers how often each parameter has been changed in place until now.
  void noteVersions();
  // Before a stage runs again: throws if a parameter has been changed since.
  void checkVersions() const;

  std::vector<at::Tensor> all;
  std::vector<std::vector<std::size_t>> of_stage;  // per stage, its parameters' places in all
  std::vector<std::size_t> stages_with;            // per parameter, in how many stages it is

 private:
  std::vector<std::uint32_t> versions_;
};

}  // namespace weft::pipe
