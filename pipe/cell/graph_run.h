// Runs a stage's graph backward, alone.
#pragma once

#include <torch/csrc/autograd/engine.h>

namespace weft::pipe {

// The gradients at `ends`, computed on the calling thread, which holds no GIL; throws what a node
// throws. Calls the engine's C++ execute(): the override for Python (PythonEngine::execute in
// python_engine.cpp) also sets the error in the thread's Python state, where the next Python code
// on a stage's thread would find it.
inline torch::autograd::variable_list runGraph(const torch::autograd::edge_list& roots,
                                               const torch::autograd::variable_list& root_grads,
                                               bool keep_graph, bool create_graph,
                                               const torch::autograd::edge_list& ends) {
  auto& engine = torch::autograd::Engine::get_default_engine();
  return engine.torch::autograd::Engine::execute(roots, root_grads, keep_graph, create_graph,
                                                 /*accumulate_grad=*/false, ends);
}

}  // namespace weft::pipe
