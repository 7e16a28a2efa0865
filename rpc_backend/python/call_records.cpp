// The last calls, for the flight record and weft.trace (weft/_observe).
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "rpc_backend/python/bindings.h"
#include "rpc_backend/trace/call_recorder.h"
#include "third_party/torch/python_stack.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

py::list rowsOf(const std::vector<CallRecord>& records, bool stacks) {
  py::list rows;
  for (const CallRecord& one : records) {
    py::dict row;
    row["call"] = one.call;
    row["peer"] = one.peer;
    row["kind"] = kCallKinds[static_cast<std::size_t>(one.kind)];
    const std::string_view name(one.name.data());
    row["function"] = py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(name.data(), static_cast<py::ssize_t>(name.size()), "replace"));
    row["request_bytes"] = one.request_bytes;
    row["answer_bytes"] = one.answer_bytes;
    row["time_created_ns"] = one.created_ns;
    row["time_started_ns"] = one.started_ns;
    row["time_ended_ns"] = one.ended_ns;
    row["failed"] = one.failed;
    row["thread_id"] = one.thread;
    if (stacks) row["frames"] = framesOf(one.traceback);
    rows.append(row);
  }
  return rows;
}

}  // namespace

void bindCallRecords(py::module_& module) {
  module.def(
      "_record_calls",
      [](std::size_t size, bool stacks) { CallRecorder::get().start(size, stacks); },
      py::arg("size"), py::arg("stacks"),
      "Keeps the last calls of each direction from now on; 0: none.");
  module.def(
      "_recorded_calls",
      [](bool stacks) {
        const CallRecorder::Calls calls = CallRecorder::get().calls();
        return std::pair{rowsOf(calls.made, stacks), rowsOf(calls.served, /*stacks=*/false)};
      },
      py::arg("stacks"),
      "The kept calls that were made here, and those that were served; the oldest first.");
}

}  // namespace weft::rpc
