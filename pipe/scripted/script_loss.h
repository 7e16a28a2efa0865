// A scripted loss on its way to the last stage's worker, which gets it anew with each mini-batch.
//
// Threads: any.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>

#include "transport/base/api.h"

namespace weft::pipe {

// Of the bytes that torch.jit.save wrote. The same ones as last time are not compiled again: what
// comes is a copy, with the state that was saved. Throws c10::Error for other bytes.
WEFT_API torch::jit::Module loadLoss(const std::string& saved);

}  // namespace weft::pipe
