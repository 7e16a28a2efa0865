#include "rpc_backend/serve/callback/script_service.h"

#include <atomic>

#include "rpc_backend/serve/callback/builtin_call.h"

namespace weft::rpc {

namespace {
std::atomic<ScriptService*> g_first{nullptr};
}  // namespace

void addScriptService(ScriptService* service) noexcept {
  service->next_ = g_first.load();
  g_first.store(service);
}

c10::intrusive_ptr<c10::ivalue::Future> runScript(const std::string& name,
                                                  std::vector<at::IValue>& stack) {
  ScriptService* service = g_first.load(std::memory_order_acquire);
  for (; service != nullptr; service = service->next_) {
    if (auto result = service->run(name, stack)) return result;
  }
  return nullptr;
}

void checkOperator(RequestPolicy policy, const torch::distributed::rpc::ScriptCall& call) {
  if (!call.hasOp()) return;
  const c10::FunctionSchema& schema = call.op()->schema();
  const auto why = refusal(policy, schema, call.stack());
  TORCH_CHECK(!why, "the request is refused: ", *why);
  TORCH_CHECK(hasItsArguments(schema, call.stack()), "the request is refused: it has ",
              call.stack().size(), " values for the arguments of ", schema);
}

}  // namespace weft::rpc
