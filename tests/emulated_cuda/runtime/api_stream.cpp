// The CUDA runtime's functions on streams and events.
#include <cuda_runtime_api.h>

#include <cstring>
#include <new>

#include "tests/emulated_cuda/runtime/device.h"
#include "tests/emulated_cuda/runtime/error.h"
#include "tests/emulated_cuda/runtime/event.h"
#include "tests/emulated_cuda/runtime/forgotten_wait.h"
#include "tests/emulated_cuda/runtime/settings.h"
#include "tests/emulated_cuda/runtime/stream.h"

using emulated::Event;
using emulated::result;
using emulated::Stream;
using emulated::streamOf;

namespace {

Event* eventOf(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

}  // namespace

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream(emulated::currentDevice(), priority));
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  auto* stream = streamOf(handle);
  if (stream == nullptr || handle == nullptr) return result(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  auto* stream = streamOf(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  *priority = stream->priority();
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  auto* stream = streamOf(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (!emulated::isForgotten()) stream->wait();
  return cudaSuccess;
}

// cudaErrorNotReady is an answer here, and no error that cudaGetLastError() remembers.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  auto* stream = streamOf(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  return stream->isIdle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  auto* stream = streamOf(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (!emulated::isForgotten()) eventOf(event)->makeWait(*stream);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  auto* stream = streamOf(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (emulated::isForgottenByCaller())
    function(data);  // does not wait for the stream
  else
    stream->enqueue([=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data,
                                  unsigned) {
  auto* stream = streamOf(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  stream->enqueue([=] { callback(handle, cudaSuccess, data); });
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const bool interprocess = (flags & cudaEventInterprocess) != 0;
  if (interprocess && !emulated::settings().ipc) return result(cudaErrorNotSupported);
  try {
    *event = reinterpret_cast<cudaEvent_t>(new Event(interprocess));
  } catch (const std::bad_alloc&) {
    return result(cudaErrorMemoryAllocation);
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete eventOf(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  auto* stream = streamOf(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (emulated::fails(emulated::failingRecord())) return result(cudaErrorUnknown);
  eventOf(event)->record(*stream);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (emulated::isForgottenByCaller()) return cudaSuccess;
  return eventOf(event)->isDone() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (emulated::fails(emulated::failingWait())) return result(cudaErrorUnknown);
  if (!emulated::isForgotten()) eventOf(event)->wait();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = eventOf(end)->millisecondsSince(*eventOf(start));
  return cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  if (!eventOf(event)->isInterprocess()) return result(cudaErrorInvalidResourceHandle);
  const auto made = eventOf(event)->handle();
  static_assert(sizeof(made) <= sizeof(*handle));
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &made, sizeof(made));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  Event::Handle made{};
  std::memcpy(&made, &handle, sizeof(made));
  auto* opened = Event::open(made);
  if (opened == nullptr) return result(cudaErrorInvalidResourceHandle);
  *event = reinterpret_cast<cudaEvent_t>(opened);
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, std::size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
