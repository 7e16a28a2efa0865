// libcuda.so.1: the driver's functions that torch links or looks up. Those that it calls on the
// emulated machine answer; the others say that they are not supported. Without the driver's header,
// whose macros rename functions from version to version.

namespace {

enum Result { kSuccess = 0, kNotSupported = 801 };
void* const kContext = reinterpret_cast<void*>(0x1);

}  // namespace

extern "C" {

Result cuInit(unsigned) { return kSuccess; }
Result cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
Result cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(void** context, int) {
  *context = kContext;
  return kSuccess;
}
Result cuCtxGetCurrent(void** context) {
  *context = kContext;
  return kSuccess;
}
Result cuCtxSetCurrent(void*) { return kSuccess; }
Result cuDeviceGetAttribute(int* value, int, int) {
  *value = 0;
  return kSuccess;
}
Result cuGetErrorString(int, const char** text) {
  *text = "not supported by the emulated driver";
  return kSuccess;
}
Result cuGetErrorName(int, const char** text) {
  *text = "CUDA_ERROR_NOT_SUPPORTED";
  return kSuccess;
}

#define NOT_SUPPORTED(name) \
  Result name() { return kNotSupported; }

NOT_SUPPORTED(cuCtxFromGreenCtx)
NOT_SUPPORTED(cuCtxPopCurrent)
NOT_SUPPORTED(cuCtxPushCurrent)
NOT_SUPPORTED(cuDevResourceGenerateDesc)
NOT_SUPPORTED(cuDevSmResourceSplitByCount)
NOT_SUPPORTED(cuDeviceGetCount)
NOT_SUPPORTED(cuDeviceGetDevResource)
NOT_SUPPORTED(cuDeviceGetUuid)
NOT_SUPPORTED(cuFuncGetAttribute)
NOT_SUPPORTED(cuFuncSetAttribute)
NOT_SUPPORTED(cuFuncSetCacheConfig)
NOT_SUPPORTED(cuGreenCtxCreate)
NOT_SUPPORTED(cuGreenCtxDestroy)
NOT_SUPPORTED(cuGreenCtxStreamCreate)
NOT_SUPPORTED(cuLaunchCooperativeKernel)
NOT_SUPPORTED(cuLaunchKernel)
NOT_SUPPORTED(cuLinkAddData_v2)
NOT_SUPPORTED(cuLinkComplete)
NOT_SUPPORTED(cuLinkCreate_v2)
NOT_SUPPORTED(cuMemAddressFree)
NOT_SUPPORTED(cuMemAddressReserve)
NOT_SUPPORTED(cuMemCreate)
NOT_SUPPORTED(cuMemExportToShareableHandle)
NOT_SUPPORTED(cuMemGetAllocationGranularity)
NOT_SUPPORTED(cuMemGetAllocationPropertiesFromHandle)
NOT_SUPPORTED(cuMemImportFromShareableHandle)
NOT_SUPPORTED(cuMemMap)
NOT_SUPPORTED(cuMemRelease)
NOT_SUPPORTED(cuMemRetainAllocationHandle)
NOT_SUPPORTED(cuMemSetAccess)
NOT_SUPPORTED(cuMemUnmap)
NOT_SUPPORTED(cuMemsetD32Async)
NOT_SUPPORTED(cuModuleGetFunction)
NOT_SUPPORTED(cuModuleLoad)
NOT_SUPPORTED(cuModuleLoadData)
NOT_SUPPORTED(cuModuleLoadDataEx)
NOT_SUPPORTED(cuModuleUnload)
NOT_SUPPORTED(cuMulticastAddDevice)
NOT_SUPPORTED(cuMulticastBindMem)
NOT_SUPPORTED(cuMulticastCreate)
NOT_SUPPORTED(cuMulticastUnbind)
NOT_SUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOT_SUPPORTED(cuPointerGetAttribute)
NOT_SUPPORTED(cuStreamWriteValue32)
NOT_SUPPORTED(cuTensorMapEncodeTiled)
}
