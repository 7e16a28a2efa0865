#include "rpc_backend/python/bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/python_rpc_handler.h>
#include <torch/csrc/distributed/rpc/request_callback_impl.h>
#include <torch/csrc/utils/pybind.h>

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/call/call_table.h"
#include "rpc_backend/codec/shared_tensor.h"
#include "rpc_backend/options/env.h"
#include "rpc_backend/serve/callback/script_service.h"
#include "rpc_backend/torch_private/torch_rrefs.h"
#include "third_party/torch/interpreter.h"
#include "transport/auth/auth_key.h"
#include "transport/base/environment.h"
#include "transport/io/interface.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

using torch::distributed::rpc::RequestCallbackImpl;
using torch::distributed::rpc::RpcBackendOptions;

void bindOptions(py::module_& module) {
  py::class_<WeftRpcBackendOptions, RpcBackendOptions, std::shared_ptr<WeftRpcBackendOptions>>(
      module, "RpcBackendOptionsBase",
      "What may be set on a Weft agent; see weft.RpcBackendOptions.")
      .def(py::init<float, std::string>(), py::arg("rpc_timeout"), py::arg("init_method"))
      .def_readwrite("num_worker_threads", &WeftRpcBackendOptions::num_worker_threads)
      .def_readwrite("device_maps", &WeftRpcBackendOptions::device_maps)
      .def_readwrite("devices", &WeftRpcBackendOptions::devices)
      .def_readwrite("heartbeat_interval", &WeftRpcBackendOptions::heartbeat_interval)
      .def_readwrite("peer_timeout", &WeftRpcBackendOptions::peer_timeout)
      .def_readwrite("reconnect_timeout", &WeftRpcBackendOptions::reconnect_timeout)
      .def_readwrite("max_message_bytes", &WeftRpcBackendOptions::max_message_bytes)
      .def_readwrite("max_inflight_bytes", &WeftRpcBackendOptions::max_inflight_bytes)
      .def_readwrite("max_calls_in_flight", &WeftRpcBackendOptions::max_calls_in_flight)
      .def_readwrite("auth_key_file", &WeftRpcBackendOptions::auth_key_file)
      .def_readwrite("interface", &WeftRpcBackendOptions::interface)
      .def_readwrite("master_host", &WeftRpcBackendOptions::master_host)
      .def_property(
          "request_policy",
          [](const WeftRpcBackendOptions& self) { return toString(self.request_policy); },
          [](WeftRpcBackendOptions& self, const std::string& name) {
            self.request_policy = parseRequestPolicy(name);
          })
      .def("check", &WeftRpcBackendOptions::check, "Raises for a bad value.");
}

// Python values, for RRefLifecycle, whose threads do not hold the GIL.
RRefHooks rrefHooks() {
  RRefHooks hooks;
  hooks.drop = [](c10::intrusive_ptr<torch::distributed::rpc::RRef> rref) { dropWithGil(rref); };
  hooks.describe = [](const c10::IValue& value) {
    const py::gil_scoped_acquire gil;
    const auto object = py::reinterpret_borrow<py::object>(value.toPyObject());
    RRefValue described{Py_TYPE(object.ptr())->tp_name, 0};
    try {
      described.bytes =
          py::module_::import("weft.rref").attr("tensor_bytes")(object).cast<std::uint64_t>();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("weft.rref.tensor_bytes");
    }
    return described;
  };
  return hooks;
}

// Whether an error is set in the thread's state, which is the calling thread's own. Without the
// GIL.
bool hasError(const PyThreadState* own) {
#if PY_VERSION_HEX >= 0x030C0000
  return own->current_exception != nullptr;
#else
  return own->curexc_type != nullptr;
#endif
}

// A thread without a Python thread state gets a new one each time it takes the GIL, which maps and
// unmaps 16 KiB, three times in a request. So Weft's threads keep theirs.
ThreadHooks threadHooks() {
  ThreadHooks hooks;
  hooks.begin = [] {
    // Without the GIL, for which a request without Python must not wait.
    if (Py_IsInitialized()) PyThreadState_New(PyInterpreterState_Main());
  };
  // A backward in TorchScript that fails in Python code leaves its error set in the thread's state
  // (PythonEngine::execute in torch's python_engine.cpp): it is not the next request's.
  hooks.after_task = [] {
    const PyThreadState* const own = PyGILState_GetThisThreadState();
    if (own == nullptr || !hasError(own)) return;
    const py::gil_scoped_acquire gil;
    PyErr_Clear();
  };
  hooks.end = [] {
    PyThreadState* const own = PyGILState_GetThisThreadState();
    if (own == nullptr || !Py_IsInitialized()) return;  // at exit Python frees them itself
    PyEval_RestoreThread(own);
    PyThreadState_Clear(own);
    PyThreadState_DeleteCurrent();
  };
  return hooks;
}

// torch's handler of Python calls imports modules under a lock on its first use. A garbage
// collection in there may run a destructor that makes a call, and the answer takes the same lock:
// that thread would wait for itself, and all others for it. So the handler is made here, while no
// collection can begin.
void prepareHandler() {
  struct NoCollection {
    const int was_enabled = PyGC_Disable();
    ~NoCollection() {
      if (was_enabled != 0) PyGC_Enable();
    }
  };
  const py::gil_scoped_acquire gil;
  const NoCollection for_now;
  const py::gil_scoped_release no_gil;
  torch::distributed::rpc::PythonRpcHandler::getInstance();
}

// (id, owned, type, owner, holders, age, bytes): weft/rref.py gives the columns their names.
py::list rrefReport(WeftAgent& agent) {
  std::vector<RRefRow> rows;
  {
    const py::gil_scoped_release no_gil;
    rows = agent.rrefs().report();
  }
  const auto name = [&](Rank rank) { return agent.nameOf(static_cast<worker_id_t>(rank)); };
  py::list out;
  for (const RRefRow& row : rows) {
    py::list holders;
    for (const Rank holder : row.holders)
      holders.append(name(holder));
    out.append(py::make_tuple(py::make_tuple(row.id.created_on, row.id.local_id), row.owned,
                              row.type, name(row.owner), holders, row.age, row.bytes));
  }
  return out;
}

// In place of WeftAgent::create: tests give an agent of their own, in a capsule of this name.
using MakeAgent =
    std::function<std::shared_ptr<WeftAgent>(WeftAgent::Config, std::unique_ptr<RequestCallback>)>;
constexpr const char* kMakeAgent = "weft.MakeAgent";

std::shared_ptr<WeftAgent> makeAgent(const c10::intrusive_ptr<c10d::Store>& store, std::string name,
                                     int rank, std::optional<int> world_size, int device_count,
                                     const WeftRpcBackendOptions& options,
                                     const std::optional<py::capsule>& maker) {
  const MakeAgent* make = nullptr;
  if (maker) {
    make = static_cast<const MakeAgent*>(PyCapsule_GetPointer(maker->ptr(), kMakeAgent));
    if (make == nullptr) throw py::error_already_set();
  }
  const py::gil_scoped_release no_gil;
  WeftAgent::Config config;
  config.store = store;
  config.name = std::move(name);
  config.rank = rank;
  config.world_size = world_size;
  config.device_count = device_count;
  config.options = options;
  config.rref_hooks = rrefHooks();
  config.thread_hooks = threadHooks();
  config.before_serving = prepareHandler;
  auto callback = std::make_unique<ServesScripts<RequestCallbackImpl>>(options.request_policy);
  return make != nullptr ? (*make)(std::move(config), std::move(callback))
                         : WeftAgent::create(std::move(config), std::move(callback));
}

std::vector<std::tuple<std::string, std::string, double, double>> waitingCalls(
    const WeftAgent& agent, std::size_t most) {
  using Seconds = std::chrono::duration<double>;
  std::vector<std::tuple<std::string, std::string, double, double>> rows;
  const auto now = Clock::now();
  for (const WaitingCall& call : agent.waitingCalls(most)) {
    rows.emplace_back(agent.nameOf(call.peer), kCallKinds[static_cast<std::size_t>(call.kind)],
                      Seconds(now - call.started).count(), Seconds(call.timeout).count());
  }
  return rows;
}

std::map<std::string, std::pair<std::vector<std::uint64_t>, double>> roundTrips(
    const WeftAgent& agent) {
  std::map<std::string, std::pair<std::vector<std::uint64_t>, double>> rows;
  for (std::size_t kind = 0; kind < kCallKinds.size(); ++kind) {
    const DurationHistogram& one = agent.counters().round_trips[kind];
    rows[kCallKinds[kind]] = {one.cumulative(), std::chrono::duration<double>(one.total()).count()};
  }
  return rows;
}

void bindAgent(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<WeftAgent, RpcAgent, std::shared_ptr<WeftAgent>>(
      module, "WeftAgent", "torch's RpcAgent over Weft's transport.")
      .def(py::init(&makeAgent), py::arg("store"), py::arg("name"), py::arg("rank"),
           py::arg("world_size"), py::arg("device_count"), py::arg("rpc_backend_options"),
           py::arg("make") = std::nullopt)
      .def(
          "barrier", &WeftAgent::barrier, py::arg("timeout") = 0.0F, py::arg("last") = false,
          no_gil,
          "Waits until every worker has come here and no call is in flight; returns the ranks that "
          "some worker has lost, or that were started again.")
      .def("shutdown", &WeftAgent::shutdown, no_gil,
           "torch's, but for a forked child, where it does nothing.")
      .def(
          "check_process", [](const WeftAgent& self) { self.checkProcess("rpc"); },
          "Raises in a child that was forked after init_rpc.")
      .def("hurry", &WeftAgent::hurry, "The shutdown will not wait for user code.")
      .def("get_worker_info", [](const WeftAgent& self) { return self.RpcAgent::getWorkerInfo(); })
      .def("get_worker_info",
           [](const WeftAgent& self, const std::string& name) { return self.getWorkerInfo(name); })
      .def("get_worker_info",
           [](const WeftAgent& self, worker_id_t rank) { return self.getWorkerInfo(rank); })
      .def("loss_of", &WeftAgent::lossOf, py::arg("rank"),
           "Why that worker is lost; None while it is not.", no_gil)
      .def("_waiting_calls", &waitingCalls, py::arg("most"),
           "The oldest calls that wait: (worker, kind, seconds so far, timeout in seconds).")
      .def("_round_trips", &roundTrips,
           "By kind of call: how many took at most each bound, and the seconds of all.")
      .def(
          "_is_orphan",
          [](const WeftAgent& self, const torch::distributed::rpc::PyRRef& rref) {
            const auto value = torch::distributed::rpc::fromRRefInterface(rref.toIValue().toRRef());
            return self.rrefs().isOrphan(fromTorch(value->rrefId()), value->owner());
          },
          py::arg("rref"),
          "Whether the RRef's value was released because its owner was lost, though it may be "
          "back.")
      .def("rref_report", &rrefReport, "The rows of weft.rref_report().")
      .def(
          "fail_unfinished_rrefs", [](const WeftAgent& self) { self.rrefs().failUnfinished(); },
          no_gil,
          "Ends the values whose creation has not ended, before rpc.shutdown waits for all.")
      .def(
          "warn_about_leaked_rrefs",
          [](const WeftAgent& self, bool ignored) { self.rrefs().warnAboutLeaks(ignored); },
          py::arg("ignored"), no_gil, "One warning for each value here that others still refer to.")
      .def("_get_backend_options", &WeftAgent::options, py::return_value_policy::copy)
      .def_property_readonly(
          "devices", [](const WeftAgent& agent) { return agent.getDevices(); },
          "Those that tensors may come to or go from.")
      .def_property_readonly("has_devices",
                             [](const WeftAgent& self) { return !self.getDevices().empty(); })
      .def_property_readonly("is_static_group", &WeftAgent::isStaticGroup)
      .def_property_readonly("everyone_serves_python", &WeftAgent::everyoneServesPython)
      .def_property_readonly("store", &WeftAgent::store);
}

void bindMemory(py::module_& module) {
  module.def(
      "empty_exported",
      [](const std::vector<std::pair<std::vector<std::int64_t>, at::ScalarType>>& shapes) {
        std::vector<TensorShape> wanted;
        wanted.reserve(shapes.size());
        for (const auto& [sizes, dtype] : shapes)
          wanted.push_back({sizes, dtype});
        return emptyExported(wanted);
      },
      py::arg("shapes"), py::call_guard<py::gil_scoped_release>(),
      "CPU tensors in one memory that is sent without a copy; see weft.empty and weft.snapshot.");
}

void bindEnvironment(py::module_& module) {
  module.def(
      "environment",
      [] {
        std::vector<std::tuple<std::string, std::string, std::string>> rows;
        for (const auto& variable : env::table()) {
          rows.emplace_back(variable.name, variable.fallback, variable.meaning);
        }
        return rows;
      },
      "Every environment variable Weft reads: (name, default, meaning).");
  module.def(
      "_check_key_file",
      [] {
        const auto key =
            transport::AuthKey::fromFile(environment::value(environment::kAuthKeyFile));
        if (!key.ok()) throw py::value_error(key.error().text());
      },
      "Raises where init_rpc would refuse WEFT_AUTH_KEY_FILE.");
  module.def(
      "_check_interface",
      [] {
        const std::string wanted = environment::value(environment::kSocketIfname);
        if (wanted.empty()) return;
        const auto listen = transport::chooseListenAddress("", wanted);
        if (!listen.ok()) throw py::value_error(listen.error().text());
      },
      "Raises where init_rpc would refuse WEFT_SOCKET_IFNAME.");
  module.def("_round_trip_bounds", &DurationHistogram::boundsInSeconds,
             "The bounds of _round_trips(), in seconds; the last count has none.");
  module.def("unknown_environment", &env::unknownNames,
             "Names in the environment that look like Weft's and are not.");
}

}  // namespace

void bind(py::module_& module) {
  hookInterrupts();
  // The base classes are registered by torch's own module.
  py::module_::import("torch._C._distributed_rpc");
  bindOptions(module);
  bindAgent(module);
  bindCalls(module);
  bindPythonCalls(module);
  bindScriptCalls(module);
  bindDeadlines(module);
  bindCallRecords(module);
  bindMemory(module);
  bindEnvironment(module);
  bindLog(module);
}

}  // namespace weft::rpc
