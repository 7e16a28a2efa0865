#include "c10d_plugin/python/bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "c10d_plugin/backend/backend.h"
#include "c10d_plugin/backend/shared_devices.h"
#include "c10d_plugin/p2p/callback_threads.h"

namespace py = pybind11;

namespace {

using weft::process_group::DelegateSpec;
using weft::process_group::MakeDelegate;
using weft::process_group::WeftBackend;

// Any thread, without the GIL: at the program's end the interpreter ends a thread that asks for it.
// Where the interpreter takes no more such requests the object is leaked.
void releaseLater(PyObject* object) {
  static_cast<void>(Py_AddPendingCall(
      [](void* last) {
        Py_DECREF(static_cast<PyObject*>(last));
        return 0;
      },
      object));
}

// A Python function as MakeDelegate: it is called with the GIL, and released without it.
MakeDelegate delegateMaker(py::object function) {
  if (function.is_none()) return nullptr;
  const std::shared_ptr<PyObject> held(function.release().ptr(), releaseLater);
  return [held](const DelegateSpec& spec) -> c10::intrusive_ptr<c10d::Backend> {
    const py::gil_scoped_acquire gil;
    const py::object made =
        py::handle(held.get())(spec.device.str(), spec.store, spec.rank, spec.size, spec.timeout,
                               spec.group_name, spec.global_ranks);
    if (made.is_none()) return nullptr;
    return c10::intrusive_ptr<c10d::Backend>::reclaim_copy(made.cast<c10d::Backend*>());
  };
}

c10::intrusive_ptr<WeftBackend> make(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                     std::chrono::milliseconds timeout,
                                     const std::string& interface, const std::string& group_name,
                                     std::vector<std::uint64_t> global_ranks,
                                     py::object make_delegate) {
  auto options = c10::make_intrusive<WeftBackend::Options>(timeout);
  options->interface = interface;
  options->group_name = group_name;
  options->global_ranks_in_group = std::move(global_ranks);
  options->make_delegate = delegateMaker(std::move(make_delegate));
  const py::gil_scoped_release no_gil;
  return c10::make_intrusive<WeftBackend>(std::move(store), rank, size, std::move(options));
}

// For _make_cuda of weft/_torch/process_group.py.
c10::intrusive_ptr<c10d::Backend> makeShared(const std::string& device,
                                             c10::intrusive_ptr<c10d::Store> store, int rank,
                                             int size, std::chrono::milliseconds timeout,
                                             const std::string& interface,
                                             std::size_t staging_bytes) {
  DelegateSpec spec;
  spec.device = c10::Device(device);
  spec.store = std::move(store);
  spec.rank = rank;
  spec.size = size;
  spec.timeout = timeout;
  spec.staging_bytes = staging_bytes;
  return weft::process_group::makeSharedDeviceBackend(spec, interface);
}

}  // namespace

void weft::process_group::bind(py::module_& module) {
  // The base class is registered by torch's own module.
  py::module_::import("torch._C._distributed_c10d");
  bindRecorder(module);
  findCallSites();
  module.def(
      "_wait_for_callbacks", &weft::process_group::waitForCallbacks, py::arg("limit"),
      py::call_guard<py::gil_scoped_release>(),
      "Waits until no callback of a message's future runs; False when the limit passed first.");
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<WeftBackend, c10d::Backend, c10::intrusive_ptr<WeftBackend>>(
      module, "WeftBackend", "torch's process-group backend \"weft\".")
      .def(py::init(&make), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
           py::arg("interface") = "", py::arg("group_name") = "",
           py::arg("global_ranks") = std::vector<std::uint64_t>(),
           py::arg("make_delegate") = py::none())
      .def(
          "delegate",
          [](const WeftBackend& backend, const std::string& device) {
            return backend.delegate(c10::Device(device).type());
          },
          py::arg("device"),
          "The backend that serves tensors on such a device, NCCL's for \"cuda\"; None before the "
          "first one came.")
      .def_property_readonly("path", &WeftBackend::path,
                             "How the collectives travel: \"shared memory\", \"messages\", …")
      .def(
          "_activity",
          [](const WeftBackend& backend) {
            using Seconds = std::chrono::duration<double>;
            const auto now = backend.activity();
            return std::tuple{now.calls,
                              Seconds(now.busy).count(),
                              std::string(now.running == nullptr ? "" : now.running),
                              Seconds(now.since).count(),
                              Seconds(now.timeout).count(),
                              now.awaited,
                              now.waited};
          },
          "Of its collectives: how many were called, the seconds they ran; the one that runs (or "
          "\"\"), the seconds it has run, its timeout, and the ranks that it waits for; the "
          "seconds that this rank waited in all, by the rank that was the last to come.")
      .def(
          "_waiting_messages",
          [](const WeftBackend& backend) {
            using Seconds = std::chrono::duration<double>;
            const auto now = std::chrono::steady_clock::now();
            std::vector<std::tuple<std::string, int, double, double>> found;
            for (const auto& one : backend.waitingMessages())
              found.emplace_back(one.title, one.rank, Seconds(now - one.since).count(),
                                 Seconds(one.timeout).count());
            return found;
          },
          "The messages on the CPU that threads wait for: what, the other rank (-1: any), the "
          "seconds that it has waited, and its timeout.")
      .def("_get_sequence_number_for_group", &WeftBackend::getSequenceNumberForGroup,
           "How many collectives were called.")
      .def("_set_default_timeout", &WeftBackend::setTimeout, py::arg("timeout"), no_gil,
           "The time limit of operations that do not say their own.")
      .def(
          "perform_nocolor_split", [](WeftBackend&, const py::object&) {},
          "Nothing: ranks outside a new group take no part in making it.");
  module.def("make_shared_device_backend", &makeShared, py::arg("device"), py::arg("store"),
             py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("interface"),
             py::arg("staging_bytes"), no_gil,
             "The backend for ranks that share a device; None where each has its own.");
  bindGroupMemory(module);
}
