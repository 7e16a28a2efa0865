#include "rpc_backend/serve/script_service.h"

#include <atomic>

namespace weft::rpc {

namespace {
std::atomic<ScriptService*> g_service{nullptr};
}  // namespace

void setScriptService(ScriptService* service) noexcept { g_service.store(service); }
ScriptService* scriptService() noexcept { return g_service.load(std::memory_order_acquire); }

void checkOperator(RequestPolicy policy, const torch::distributed::rpc::ScriptCall& call) {
  if (!call.hasOp()) return;
  const auto why = refusal(policy, call.op()->schema());
  TORCH_CHECK(!why, "the request is refused: ", *why);
}

}  // namespace weft::rpc
