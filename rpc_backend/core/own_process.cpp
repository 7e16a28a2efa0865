#include "rpc_backend/core/own_process.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace weft::rpc {
namespace {

std::atomic<bool> g_joined{false};
std::atomic<OwnProcess> g_latest{};

}  // namespace

void OwnProcess::join() noexcept {
  g_latest.store(OwnProcess(), std::memory_order_relaxed);
  g_joined.store(true, std::memory_order_release);
}

void OwnProcess::checkLatest(const char* what) {
  if (g_joined.load(std::memory_order_acquire))
    g_latest.load(std::memory_order_relaxed).check(what);
}

void OwnProcess::refuse(const char* what) {
  TORCH_CHECK(
      false, what,
      ": this process was forked after init_rpc, and has no part in the RPC group; make the "
      "call in the parent, or start the child by 'spawn' and let it call init_rpc itself");
}

}  // namespace weft::rpc
