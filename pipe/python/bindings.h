// The pipeline for Python. All are called once, with the GIL, when weft._C is imported.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::pipe {

// Adds the submodule `pipe` to `module`.
void bind(pybind11::module_& module);
// What weft.pipe._workers uses of C++: the values between stages on workers.
void bindWorkers(pybind11::module_& pipe);
// A worker's mini-batch of scripted stages: it runs without the GIL, which is taken only for a
// value that needs Python.
void bindWorkerRun(pybind11::module_& pipe);
// Wraps get_state, set_state, manual_seed and the like of torch.Generator: they tell
// pipe/stage/rng.h when they use the generator's state.
void watchGeneratorMethods();

}  // namespace weft::pipe
