// What a pipeline is made of: stages, each a function of micro-batches with parameters.
#pragma once

#include <string>
#include <vector>

#include "pipe/api.h"
#include "pipe/batch.h"

namespace weft::pipe {

class WEFT_API Stage {
 public:
  virtual ~Stage() = default;

  // Runs one micro-batch, in the grad mode and with the thread-local state of the caller of the
  // pipeline. Called without any lock of Weft's and without the GIL, one call at a time per stage,
  // on any thread. A tuple or a list at the top of the input is the stage's arguments.
  virtual Batch forward(const Batch& input) = 0;

  // Called once per mini-batch before it runs, on the thread that calls the pipeline.
  virtual void prepare() {}

  // The tensors that may get gradients here, whether they want them now or not. Asked once per
  // mini-batch that may have gradients, on the thread that calls the pipeline.
  virtual std::vector<at::Tensor> parameters() = 0;
};

}  // namespace weft::pipe
