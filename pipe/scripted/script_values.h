// Values at the borders of scripted stages: their tensors, and how they travel.
//
// A tensor, and a tuple or a list of different tensors, travel without Python. What else there is
// (dictionaries, nested values, numbers) travels as Python pickles it: PythonValues reads and
// writes that, and a process without Python refuses it.
//
// Threads: any. The GIL is not held.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

#include "pipe/workers/arrivals.h"
#include "transport/base/api.h"

namespace weft::pipe {

using Tensors = std::vector<at::Tensor>;
using Values = std::vector<at::IValue>;

// The first byte of a parcel's layout, which weft/pipe/_workers/parcels.py knows too. An empty
// layout: one tensor.
namespace layout {
inline constexpr char kList = '*';  // then, where some are None, a byte for each: 0 for these
inline constexpr char kTuple = '(';
// Before a layout whose tensors shared memory at the sender.
inline constexpr char kLostSharing = '&';
}  // namespace layout

// The arguments of a stage.
struct StageArguments {
  Values values;
  bool lost_sharing = false;  // some shared memory at the sender, and are separate copies here
};

// What only Python can do. Called without the GIL; throws what Python raises.
class PythonValues {
 public:
  virtual ~PythonValues() = default;
  virtual Values unpack(const Parcel& parcel, const c10::FunctionSchema& schema) = 0;
  virtual Tensors unpackGradients(const Parcel& parcel) = 0;
  virtual Parcel pack(const at::IValue& value) = 0;
  // The arguments as a call from Python would convert them.
  virtual Values convert(Values arguments, const c10::FunctionSchema& schema) = 0;
};

// The tensors in nested tuples, lists and dictionaries, in order, each once.
Tensors tensorsOf(const Values& values);
Tensors thatWantGradients(const Tensors& tensors);
// The value with other tensors. One that occurs twice stays one.
at::IValue withTensors(const at::IValue& value,
                       const std::function<at::Tensor(const at::Tensor&)>& change);
// As leaves of a graph to come.
at::IValue cut(const at::IValue& value);
at::IValue onHost(const at::IValue& value);
// A stage's arguments: those in a tuple, or the value alone.
Values asArguments(const at::IValue& value);

// As a Pipe's output, of the last stage's for each micro-batch: tensors, also those at the top
// level of a value, joined along dimension 0; other values as a list of one per micro-batch.
at::IValue joined(const Values& parts);

// For another worker. Throws c10::Error for a value that needs Python where `python` is null.
WEFT_API Parcel pack(const at::IValue& value, PythonValues* python);
WEFT_API StageArguments unpack(Parcel parcel, const c10::FunctionSchema& schema,
                               PythonValues* python);
// Undefined: there is none.
WEFT_API Parcel packGradients(const Tensors& gradients);
WEFT_API Tensors unpackGradients(Parcel parcel, PythonValues* python);

}  // namespace weft::pipe
