// SenderScope: whose message this thread unpickles, for what the unpickler of Python checks
// (weft/_torch/pickle_rules.py).
//
// Threads: a scope of one thread.
#pragma once

#include <optional>

#include "rpc_backend/core/torch_names.h"
#include "transport/base/api.h"

namespace weft::rpc {

class SenderScope {
 public:
  // Nothing: it is not known.
  WEFT_API explicit SenderScope(std::optional<worker_id_t> sender) noexcept;
  WEFT_API ~SenderScope();
  SenderScope(const SenderScope&) = delete;
  SenderScope& operator=(const SenderScope&) = delete;
  WEFT_API static std::optional<worker_id_t> sender() noexcept;

 private:
  const std::optional<worker_id_t> outer_;
};

}  // namespace weft::rpc
