#include "rpc_backend/script_service.h"

#include <atomic>

namespace weft::rpc {

namespace {
std::atomic<ScriptService*> g_service{nullptr};
}  // namespace

void setScriptService(ScriptService* service) noexcept { g_service.store(service); }
ScriptService* scriptService() noexcept { return g_service.load(std::memory_order_acquire); }

}  // namespace weft::rpc
