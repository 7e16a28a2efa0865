#include "rpc_backend/serve/thread_state.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>

#include "rpc_backend/call/driven_wait.h"

namespace weft::rpc {

namespace {

// What torch has for a new thread.
struct Fresh {
  at::ThreadLocalState state;
  at::ScalarType cpu = at::autocast::get_autocast_dtype(at::kCPU);
  at::ScalarType cuda = at::autocast::get_autocast_dtype(at::kCUDA);
};

const Fresh& fresh() {
  thread_local const Fresh state;
  return state;
}

bool gradientsAreFresh() {
  const c10::AutogradState& now = c10::AutogradState::get_tls_state();
  return now.get_grad_mode() && !now.get_inference_mode() && now.get_fw_grad_mode() &&
         now.get_multithreading_enabled() && !now.get_view_replay_enabled() &&
         at::SavedTensorDefaultHooks::get_tls_state().stack.empty() &&
         at::SavedTensorDefaultHooks::is_enabled();
}

bool autocastIsFresh() {
  return at::autocast::get_autocast_dtype(at::kCPU) == fresh().cpu &&
         at::autocast::get_autocast_dtype(at::kCUDA) == fresh().cuda &&
         at::autocast::is_autocast_cache_enabled();
}

bool functionModesAreFresh() {
  using at::impl::PythonTorchFunctionTLS;
  return PythonTorchFunctionTLS::stack_len() == 0 &&
         PythonTorchFunctionTLS::get_disabled_state() == at::impl::ENABLED;
}

void reset() {
  const auto profiled = c10::ThreadLocalDebugInfo::current();
  const at::RecordFunctionTLS callbacks = at::get_record_function_tls_();
  at::ThreadLocalState::setThreadLocalState(fresh().state);
  c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(profiled);
  at::set_record_function_tls_(callbacks);
  at::autocast::set_autocast_cache_enabled(true);
}

}  // namespace

FreshThreadState::FreshThreadState() { fresh(); }

// Dispatch keys show autocast, dispatch modes, functorch's layers and inference mode.
FreshThreadState::~FreshThreadState() {
  if (threadIsPlain() && gradientsAreFresh() && functionModesAreFresh() && autocastIsFresh())
    return;
  reset();
}

}  // namespace weft::rpc
