// The record of the last operations, as the dictionaries of torch's flight recorder
// (weft/_torch/patches/flight_recorder.py).
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "c10d_plugin/engine/op_recorder.h"
#include "c10d_plugin/python/bindings.h"
#include "third_party/torch/python_stack.h"

namespace py = pybind11;

namespace weft::process_group {

namespace {

const char* stateOf(const OpRecord& op) {
  if (op.ended_ns != 0 && !op.failed) return "completed";
  return op.started_ns != 0 ? "started" : "scheduled";
}

py::list sizesOf(const std::vector<TensorShape>& shapes) {
  py::list sizes;
  for (const TensorShape& shape : shapes)
    sizes.append(py::cast(shape.sizes));
  return sizes;
}

py::list dtypesOf(const std::vector<TensorShape>& shapes) {
  py::list dtypes;
  for (const TensorShape& shape : shapes)
    dtypes.append(c10::toString(shape.dtype));
  return dtypes;
}

py::dict entryOf(const OpRecord& op, bool stacks) {
  py::dict entry;
  entry["record_id"] = op.id;
  entry["pg_id"] = op.group_id;
  entry["process_group"] = py::make_tuple(op.group_name, op.group_description);
  entry["collective_seq_id"] = op.collective_sequence;
  entry["p2p_seq_id"] = op.message_sequence;
  entry["op_id"] = op.collective_sequence + op.message_sequence;
  entry["is_p2p"] = op.is_message;
  entry["profiling_name"] = op.title;
  if (op.is_message) {
    entry["rank"] = op.rank;
    entry["peer"] = op.peer;
    entry["tag"] = op.tag;
  }
  entry["input_sizes"] = sizesOf(op.inputs);
  entry["input_dtypes"] = dtypesOf(op.inputs);
  entry["output_sizes"] = sizesOf(op.outputs);
  entry["output_dtypes"] = dtypesOf(op.outputs);
  entry["state"] = stateOf(op);
  entry["time_created_ns"] = op.created_ns;
  entry["time_discovered_started_ns"] = op.started_ns;
  entry["time_discovered_completed_ns"] = op.failed ? 0 : op.ended_ns;
  if (op.started_ns != 0 && op.ended_ns != 0) {
    constexpr double kNsPerMs = 1e6;
    entry["duration_ms"] = static_cast<double>(op.ended_ns - op.started_ns) / kNsPerMs;
  }
  entry["timeout_ms"] = op.timeout.count();
  entry["retired"] = op.ended_ns != 0;
  entry["thread_id"] = std::to_string(op.thread_id);
  entry["thread_name"] = op.thread_name;
  if (stacks) entry["frames"] = framesOf(op.traceback);
  return entry;
}

py::list entries(bool stacks, bool only_active) {
  py::list all;
  for (const OpRecord& op : OpRecorder::get().entries()) {
    if (!only_active || op.ended_ns == 0) all.append(entryOf(op, stacks));
  }
  return all;
}

py::dict groups() {
  py::dict all;
  for (const GroupRecord& group : OpRecorder::get().groups()) {
    py::dict one;
    one["name"] = group.name;
    one["desc"] = group.description;
    one["last_enqueued_collective"] = group.last_enqueued;
    one["last_started_collective"] = group.last_started;
    one["last_completed_collective"] = group.last_completed;
    all[py::int_(group.id)] = one;
  }
  return all;
}

}  // namespace

void bindRecorder(py::module_& module) {
  module.def(
      "_record_operations",
      [](std::size_t size, bool stacks, bool cpp_stacks) {
        OpRecorder::get().start(size, stacks, cpp_stacks);
      },
      py::arg("size"), py::arg("stacks"), py::arg("cpp_stacks"),
      "Keeps the last operations of the process groups from now on; 0: none. The Python stacks are "
      "for errors, too.");
  module.def("_recorded_operations", &entries, py::arg("stacks"), py::arg("only_active"),
             "The kept operations, the oldest first, as torch's flight recorder shows them.");
  module.def(
      "_failed_operations", [] { return OpRecorder::get().failures(); },
      "How many operations of the process groups have failed, recorded or not.");
  module.def("_recorded_groups", &groups, "The last operations in numbers, by the group's id.");
}

}  // namespace weft::process_group
