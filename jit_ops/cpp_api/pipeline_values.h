// What a driver in Python and a worker without it tell each other of a pipeline, in TorchScript's
// values: pipeline_worker.cpp has the signatures.
//
// Threads: any. Failure: c10::Error for values that are not so.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "pipe/scripted/script_optimizer.h"
#include "pipe/scripted/script_state.h"
#include "pipe/scripted/script_worker_run.h"

namespace weft::ops {

// The stages by number. `stages` has for each layer its name and the module's index in `saved`,
// whose elements are tensors of the bytes that torch.jit.save wrote.
std::map<std::int64_t, pipe::ScriptLayers> stagesOf(const at::IValue& stages,
                                                    const at::IValue& saved);
// The arguments of run(), the first of which is the pipeline's name. The loss is loaded.
pipe::WorkerJob jobOf(const std::vector<at::IValue>& args);
// The outcome for the driver: the loss and an empty reason, when each task started and ended, and
// the gradients of the first stage's inputs by micro-batch. Without a run: no loss, and the reason.
at::IValue outcomeOf(const pipe::ScriptWorkerRun* run, const std::string& error);

using StateDicts = c10::Dict<std::string, pipe::StateDict>;
StateDicts toDicts(const pipe::ScriptOptimizer::State& state);

}  // namespace weft::ops
