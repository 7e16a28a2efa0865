#include "jit_ops/call/binding.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <tuple>

namespace weft::ops {

namespace {
using State = std::tuple<std::string, std::string, std::int64_t, double>;
}  // namespace

Binding::Binding(std::string worker_, std::string name_, std::int64_t version_, double timeout_)
    : worker(std::move(worker_)), name(std::move(name_)), version(version_), timeout(timeout_) {
  TORCH_CHECK(!worker.empty() && !name.empty(),
              "a binding needs a worker and a name, as in \"server/encoder\"");
  TORCH_CHECK(version >= 0, "versions count from 1 (0: the newest), got ", version);
}

c10::intrusive_ptr<Binding> Binding::parse(const std::string& text) {
  constexpr const char* kForm = "\"worker/name\" or \"worker/name@version\" is wanted";
  const auto slash = text.find('/');
  TORCH_CHECK(slash != std::string::npos, kForm, ", got \"", text, "\"");
  const auto at = text.find('@', slash);
  std::int64_t version = kNewest;
  if (at != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + at + 1, end, version);
    TORCH_CHECK(parsed.ec == std::errc() && parsed.ptr == end && version > 0, kForm, ", got \"",
                text, "\"");
  }
  return c10::make_intrusive<Binding>(text.substr(0, slash), text.substr(slash + 1, at - slash - 1),
                                      version);
}

Call Binding::toCall(const std::string& method, const c10::List<at::IValue>& args) const {
  Call call;
  call.worker = worker;
  call.name = name;
  call.version = version;
  call.timeout = timeout;
  call.method = method;
  call.args = args.vec();
  return call;
}

at::IValue Binding::call(const std::string& method, const c10::List<at::IValue>& args) const {
  return ops::call(toCall(method, args));
}

std::string Binding::text() const {
  return worker + "/" + name + (version == kNewest ? "" : "@" + std::to_string(version));
}

void registerBinding() {
  using Self = c10::intrusive_ptr<Binding>;
  torch::class_<Binding>("weft", "Binding")
      .def(torch::init<std::string, std::string, std::int64_t, double>(),
           "What is published as `name` at `worker`.",
           {torch::arg("worker"), torch::arg("name"), torch::arg("version") = kNewest,
            torch::arg("timeout") = kGroupsTimeout})
      .def("call", [](const Self& self, const std::string& method,
                      const c10::List<at::IValue>& args) { return self->call(method, args); })
      .def("worker", [](const Self& self) { return self->worker; })
      .def("name", [](const Self& self) { return self->name; })
      .def("version", [](const Self& self) { return self->version; })
      .def("timeout", [](const Self& self) { return self->timeout; })
      .def("__str__", [](const Self& self) { return self->text(); })
      .def_pickle(
          [](const Self& self) -> State {
            return {self->worker, self->name, self->version, self->timeout};
          },
          [](const State& state) {
            return c10::make_intrusive<Binding>(std::get<0>(state), std::get<1>(state),
                                                std::get<2>(state), std::get<3>(state));
          });
}

}  // namespace weft::ops
