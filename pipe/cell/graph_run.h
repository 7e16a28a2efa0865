// Runs a stage's graph backward, alone.
#pragma once

#include <torch/csrc/autograd/engine.h>

namespace weft::pipe {

// The gradients at `ends`, computed on the calling thread, which holds no GIL; throws what a node
// throws. Calls torch's engine as C++ does: the override of execute() for Python's sake sets the
// error in the thread's Python state as well (PythonEngine::execute in python_engine.cpp), where
// the next Python code on a stage's thread would come upon it.
inline torch::autograd::variable_list runGraph(const torch::autograd::edge_list& roots,
                                               const torch::autograd::variable_list& root_grads,
                                               bool keep_graph, bool create_graph,
                                               const torch::autograd::edge_list& ends) {
  auto& engine = torch::autograd::Engine::get_default_engine();
  return engine.torch::autograd::Engine::execute(roots, root_grads, keep_graph, create_graph,
                                                 /*accumulate_grad=*/false, ends);
}

}  // namespace weft::pipe
