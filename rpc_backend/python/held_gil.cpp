// For Python, and for peers: the stacks of a process in which a thread holds the GIL for long
// (held_stacks.h). Peers ask by a native call, which needs neither the GIL nor a worker.
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/rpc/torchscript_functions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rpc_backend/python/bindings.h"
#include "rpc_backend/python/held_stacks.h"
#include "rpc_backend/serve/callback/script_service.h"
#include "rpc_backend/serve/quick_call.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

const std::string& callName() {
  static const auto* const name = new std::string(std::string(kNative) + "stacks");
  return *name;
}

// Answers peers.
class Service final : public ScriptService {
 public:
  c10::intrusive_ptr<Future> run(const std::string& name, std::vector<at::IValue>&) override {
    if (name != callName()) return nullptr;
    HeldStacks* const stacks = answers ? now.load() : nullptr;
    auto answer = c10::make_intrusive<Future>(c10::StringType::get());
    answer->markCompleted(stacks == nullptr ? std::string() : stacks->ifHeld());
    return answer;
  }

  std::atomic<bool> answers{false};
  std::atomic<HeldStacks*> now{nullptr};  // never freed: a thread may be in it at the exit
};

Service& service() {
  static auto* const one = [] {
    auto* const made = new Service;  // never destroyed: calls may come while the process exits
    addScriptService(made);
    return made;
  }();
  return *one;
}

void arm(int signal, int file, std::uint64_t main, double limit) {
  auto* const stacks = new HeldStacks(signal, file, main);
  service().now = stacks;
  const std::chrono::milliseconds time(static_cast<std::int64_t>(limit * 1000));
  if (time.count() > 0) stacks->watchFor(time);
}

void disarm() {
  if (HeldStacks* const stacks = service().now.exchange(nullptr)) stacks->end();
}

std::shared_ptr<torch::jit::PythonFutureWrapper> ask(const std::string& worker, float timeout) {
  static const c10::QualifiedName name(callName());
  static const c10::FunctionSchema schema(callName(), "", {},
                                          {c10::Argument("", c10::StringType::get())});
  const auto send = [&] {
    const py::gil_scoped_release no_gil;
    return torch::distributed::rpc::rpcTorchscript(worker, name, schema, {}, timeout);
  };
  return std::make_shared<torch::jit::PythonFutureWrapper>(send());
}

}  // namespace

void bindHeldGil(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  module.def("_arm_stacks", &arm, py::arg("signal"), py::arg("file"), py::arg("main"),
             py::arg("limit"), no_gil,
             "While the GIL is held, stacks are had by this signal's handler, which writes to the "
             "file; after so many seconds (0: never) they are logged. `main`: the main thread.");
  module.def("_disarm_stacks", &disarm, no_gil, "Before Python ends.");
  module.def(
      "_answer_about_stacks", [](bool yes) { service().answers = yes; }, py::arg("yes"),
      "Whether peers that ask get stacks.");
  module.def("_ask_for_stacks", &ask, py::arg("worker"), py::arg("timeout"),
             "The stacks of a worker in which a thread holds the GIL; else an empty text.");
}

}  // namespace weft::rpc
