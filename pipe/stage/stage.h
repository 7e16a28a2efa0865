// A stage of a pipeline: a function of micro-batches, with parameters.
#pragma once

#include <memory>
#include <vector>

#include "pipe/data/batch.h"
#include "transport/base/api.h"

namespace weft::pipe {

// The tensors that a stage's module refers to at one time. A program may put others in their places
// before the stage runs again (torch.func.functional_call does).
struct WEFT_API StageTensors {
  explicit StageTensors(std::vector<at::Tensor> the_tensors) : tensors(std::move(the_tensors)) {}
  virtual ~StageTensors() = default;
  StageTensors(const StageTensors&) = delete;
  StageTensors& operator=(const StageTensors&) = delete;

  const std::vector<at::Tensor> tensors;  // parameters and buffers, each once
  bool uninitialized = false;             // some of them get their shapes from the first input
};

class WEFT_API Stage {
 public:
  virtual ~Stage() = default;

  // Runs one micro-batch, in the grad mode and with the thread-local state of the caller of the
  // pipeline. Called without the GIL, one call at a time per stage, which waits for the end of the
  // one before: it must not wait for another mini-batch of this pipeline. Any thread. A tuple or a
  // list at the top of the input is the stage's arguments.
  virtual Batch forward(const Batch& input) = 0;

  // Whether torch.compile compiles parts of it when they run first.
  virtual bool isCompiled() const { return false; }

  // Called once per mini-batch before it runs, on the thread that calls the pipeline.
  virtual void prepare() {}

  // What may get gradients here, whether it wants them now or not.
  virtual std::vector<at::Tensor> parametersAndBuffers() = 0;

  // What the stage refers to now. Asked once per mini-batch that may have gradients, on the thread
  // that calls the pipeline.
  virtual std::shared_ptr<StageTensors> tensors();
  // At the end of the forward: tensors that the stage has replaced count as they are now.
  virtual void update(StageTensors& /*tensors*/) {}
  // Runs a micro-batch again with the tensors of then. Throws where it cannot have them.
  virtual Batch forwardAgain(const Batch& input, const StageTensors& then);
};

}  // namespace weft::pipe
