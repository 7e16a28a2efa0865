// A partition that is a Python module: the GIL is held while it runs, and then only. One whose
// layers are all TorchScript runs without Python, unless it has hooks.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "pipe/stage/script_stage.h"
#include "pipe/stage/stage.h"

namespace weft::pipe {

class PythonStage final : public Stage {
 public:
  // `module` is called; `skips` is what currentSkips() answers meanwhile. With the GIL.
  PythonStage(pybind11::object module, pybind11::object skips);
  ~PythonStage() override;

  bool isCompiled() const override { return compiled_; }
  void prepare() override;
  // What Python raises is thrown as python_error.
  Batch forward(const Batch& input) override;
  std::vector<at::Tensor> parametersAndBuffers() override;
  // ModuleTensors; a recomputation runs with those of its forward.
  std::shared_ptr<StageTensors> tensors() override;
  void update(StageTensors& tensors) override;
  Batch forwardAgain(const Batch& input, const StageTensors& then) override;

 private:
  Batch call(const Batch& input);
  // Looks at the layers, of which the program may have replaced some.
  void lookAtLayers();
  std::shared_ptr<ScriptStage> script() const {
    const std::lock_guard lock(script_mutex_);
    return script_;
  }
  bool isHooked() const { return hooked_.load(std::memory_order_relaxed); }

  pybind11::object module_;
  pybind11::object skips_;
  const bool compiled_;
  pybind11::object layers_;  // when they were looked at last: a list
  mutable std::mutex script_mutex_;
  std::shared_ptr<ScriptStage> script_;  // null unless all layers are TorchScript
  std::atomic<bool> hooked_{false};      // layers have hooks, which only Python calls
};

// The skips of the stage that runs on this thread; None outside of one. With the GIL.
pybind11::object currentSkips();

// Whether torch.nn.utils.parametrize.cached() is in force. With the GIL.
bool cachesParametrizations();

}  // namespace weft::pipe
