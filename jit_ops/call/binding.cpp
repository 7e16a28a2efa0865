// torch.classes.weft.Binding: "what is published as NAME at WORKER", as a value that a TorchScript
// module can hold. It is four fields and no connection: making, saving and loading one asks nobody,
// so that it can be loaded before a group is joined.
#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <string>
#include <tuple>
#include <utility>

#include "jit_ops/call/calls.h"
#include "jit_ops/call/operators.h"

namespace weft::ops {

namespace {

struct Binding : torch::CustomClassHolder {
  Binding(std::string worker_, std::string name_, std::int64_t version_, double timeout_)
      : worker(std::move(worker_)), name(std::move(name_)), version(version_), timeout(timeout_) {
    TORCH_CHECK(!worker.empty() && !name.empty(),
                "a binding needs a worker and a name, as in \"server/encoder\"");
    TORCH_CHECK(version >= 0, "versions count from 1 (0: the newest), got ", version);
  }

  const std::string worker;
  const std::string name;
  const std::int64_t version;  // kNewest: whatever is newest at each call
  const double timeout;
};

using Self = c10::intrusive_ptr<Binding>;
using State = std::tuple<std::string, std::string, std::int64_t, double>;

at::IValue callBound(const Self& self, const std::string& method,
                     const c10::List<at::IValue>& args) {
  return call({.worker = self->worker,
               .name = self->name,
               .args = args.vec(),
               .method = method,
               .version = self->version,
               .timeout = self->timeout});
}

std::string shown(const Self& self) {
  const std::string version = self->version == kNewest ? "" : "@" + std::to_string(self->version);
  return self->worker + "/" + self->name + version;
}

}  // namespace

void registerBinding() {
  torch::class_<Binding>("weft", "Binding")
      .def(torch::init<std::string, std::string, std::int64_t, double>(),
           "What is published as `name` at `worker`.",
           {torch::arg("worker"), torch::arg("name"), torch::arg("version") = kNewest,
            torch::arg("timeout") = kGroupsTimeout})
      .def("call", &callBound)
      .def("worker", [](const Self& self) { return self->worker; })
      .def("name", [](const Self& self) { return self->name; })
      .def("version", [](const Self& self) { return self->version; })
      .def("timeout", [](const Self& self) { return self->timeout; })
      .def("__str__", &shown)
      .def_pickle(
          [](const Self& self) -> State {
            return {self->worker, self->name, self->version, self->timeout};
          },
          [](const State& state) {
            const auto& [worker, name, version, timeout] = state;
            return c10::make_intrusive<Binding>(worker, name, version, timeout);
          });
}

}  // namespace weft::ops
