// Sends a scripted loss to the last stage's worker, which gets it with each mini-batch. A loss that
// has not changed since the last time is neither written nor compiled again.
//
// Threads: any.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <string>

#include "transport/base/api.h"

namespace weft::pipe {

// What torch.jit.save writes.
WEFT_API std::shared_ptr<const std::string> saveLoss(const torch::jit::Module& loss);

// A copy of the loss from saveLoss()'s bytes, with its state. Throws c10::Error for other bytes.
WEFT_API torch::jit::Module loadLoss(const std::string& saved);

}  // namespace weft::pipe
