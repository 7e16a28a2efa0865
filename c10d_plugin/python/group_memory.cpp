// Moves a tensor that exists into memory of the group, where collectives use it in place. DDP's
// reducer makes its buckets itself, in ordinary memory, and gives them to a communication hook.
#include <torch/csrc/utils/pybind.h>

#include <cstring>

#include "c10d_plugin/backend/backend.h"
#include "c10d_plugin/python/bindings.h"

namespace py = pybind11;

namespace weft::process_group {

namespace {

void release(void* memory) { delete static_cast<at::Tensor*>(memory); }

// The storage gets other memory, so all views of it go along. Nobody else may use it meanwhile.
void moveIntoGroup(WeftBackend& backend, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu(), "only a tensor on the CPU can be moved");
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const bool moved = storage->data_ptr().get_deleter() == &release;
  if (moved || !backend.supportsTensorAlloc(-1)) return;
  const auto bytes = storage->nbytes();
  auto memory = std::make_unique<at::Tensor>(
      backend.allocateTensor(static_cast<long>(bytes), at::TensorOptions(at::kByte)));
  void* const data = memory->mutable_data_ptr();
  std::memcpy(data, storage->data(), bytes);
  storage->set_data_ptr_noswap(at::DataPtr(data, memory.release(), &release, at::kCPU));
}

}  // namespace

void bindGroupMemory(py::module_& module) {
  module.def("_move_into_group", &moveIntoGroup, py::arg("backend"), py::arg("tensor"),
             py::call_guard<py::gil_scoped_release>(),
             "Moves the tensor's storage into memory of the group, if it has any; once.");
}

}  // namespace weft::process_group
