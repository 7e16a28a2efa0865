#include <dlfcn.h>

#include <string>

#include "c10d_plugin/cuda.h"
#include "c10d_plugin/cuda_entry.h"

namespace weft::process_group {

namespace {

// The folder that libweft.so was loaded from, with a slash.
std::string ownFolder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&makeCudaBackend), &info) == 0) return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> makeCudaBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  const WeftBackend::Options& options) {
  const std::string path = ownFolder() + "libweft_cuda.so";
  // Never closed: torch's NCCL lives as long as the process.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr,
              "weft: CUDA collectives need libweft_cuda.so beside libweft.so "
              "and a PyTorch with CUDA and NCCL; it could not be loaded: ",
              dlerror(), ". CPU tensors work without it.");
  auto* make = reinterpret_cast<MakeCudaBackend*>(dlsym(library, kMakeCudaBackend));
  TORCH_CHECK(make != nullptr, "weft: ", path, " is not of this version of Weft");
  return make(store, rank, size, options);
}

}  // namespace weft::process_group
