#include "rpc_backend/serve/thread_state.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "rpc_backend/core/thread_state_of_torch.h"
#include "transport/base/thrown.h"

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

// Without a call of CUDA, which would initialise its driver.
bool cudaIsInitialized() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return false;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::kCUDA));
  return allocator != nullptr && allocator->initialized();
}

std::vector<c10::Stream> currentStreams(const c10::impl::VirtualGuardImpl& cuda) {
  std::vector<c10::Stream> streams;
  for (c10::DeviceIndex device = 0; device < cuda.deviceCount(); ++device)
    streams.push_back(cuda.getStream({c10::kCUDA, device}));
  return streams;
}

// Before CUDA is initialised, the current ones are the first device and the default streams.
void setDevicesBack(std::optional<c10::Device> device, const std::vector<c10::Stream>& streams) {
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const c10::Device before = device.value_or(c10::Device(c10::kCUDA, 0));
  if (cuda.getDevice() != before) cuda.setDevice(before);
  for (const c10::Stream& now : currentStreams(cuda)) {
    const auto at = static_cast<std::size_t>(now.device_index());
    const c10::Stream then =
        at < streams.size() ? streams[at] : cuda.getDefaultStream(now.device());
    if (now != then) cuda.exchangeStream(then);
  }
}

// A device that has failed fails no request that does not use it.
template <typename Function>
void ifCudaIsInitialized(const Function& function) {
  if (cudaIsInitialized()) static_cast<void>(transport::thrownBy(function));
}

}  // namespace

FreshThreadState::FreshThreadState() {
  fresh();
  ifCudaIsInitialized([this] {
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    device_ = cuda.getDevice();
    streams_ = currentStreams(cuda);
  });
}

// Dispatch keys show autocast, dispatch modes, functorch's layers and inference mode.
FreshThreadState::~FreshThreadState() {
  ifCudaIsInitialized([this] { setDevicesBack(device_, streams_); });
  if (threadIsPlain() && gradientsAreFresh() && functionModesAreFresh() && autocastIsFresh())
    return;
  reset();
}

}  // namespace weft::rpc
