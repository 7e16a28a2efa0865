#include "jit_ops/call/tensor_calls.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "jit_ops/call/calls.h"
#include "jit_ops/call/remote_backward_context.h"
#include "third_party/torch/torch_compat.h"

namespace weft::ops {

namespace {

using c10::string_view;
using pipe::makeNode;
using pipe::NodePtr;
using Tensors = std::vector<at::Tensor>;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

Call toCall(string_view worker, string_view name, string_view method, std::int64_t version,
            double timeout) {
  Call what;
  what.worker = worker;
  what.name = name;
  what.method = method;
  what.version = version;
  what.timeout = timeout;
  return what;
}

std::string describe(string_view worker, string_view name, string_view method) {
  return std::string(name) + "." + std::string(method) + " at worker '" + std::string(worker) + "'";
}

Tensors toTensors(const at::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  Tensors out;
  if (value.isTuple()) {
    for (const at::IValue& element : value.toTupleRef().elements()) {
      TORCH_CHECK(element.isTensor(), "the result has an element that is no tensor: ",
                  element.type()->annotation_str());
      out.push_back(element.toTensor());
    }
    return out;
  }
  TORCH_CHECK(false, "the result is no tensor and no tuple or list of them: ",
              value.type()->annotation_str());
}

// What a compiler was promised: shapes and dtypes of `like`, memory laid out as of a new tensor
// that is no input's, and no history.
Tensors promised(const Tensors& came, at::TensorList like, at::TensorList inputs,
                 const std::string& what) {
  TORCH_CHECK(came.size() == like.size(), what, " returned ", came.size(), " tensors; `like` has ",
              like.size());
  Tensors out;
  for (std::size_t i = 0; i < came.size(); ++i) {
    TORCH_CHECK(came[i].sizes() == like[i].sizes() && came[i].dtype() == like[i].dtype(), what,
                " returned ", came[i].dtype(), came[i].sizes(), " as tensor ", i, "; `like` says ",
                like[i].dtype(), like[i].sizes());
    at::Tensor one = came[i].detach().contiguous();
    const auto same = [&](const at::Tensor& input) { return one.is_alias_of(input); };
    out.push_back(std::any_of(inputs.begin(), inputs.end(), same) ? one.clone() : std::move(one));
  }
  return out;
}

// Kernels.

Tensors callTensors(string_view worker, string_view name, at::TensorList inputs,
                    at::TensorList like, string_view method, std::int64_t version, double timeout) {
  Call what = toCall(worker, name, method, version, timeout);
  for (const at::Tensor& input : inputs)
    what.args.emplace_back(input.detach());
  const std::string description = describe(worker, name, method);
  return promised(toTensors(call(std::move(what))), like, inputs, description);
}

// A tensor's worth of a route's number: a graph keeps it from forward to backward.
at::Tensor numbered(std::int64_t route, at::TensorList like) {
  const auto options = like.empty() ? at::TensorOptions() : like[0].options();
  return at::full({1}, route, options.dtype(at::kLong).requires_grad(false));
}

// The outputs and, behind them, the route's number. `traced` without `needed`: the compiler has
// decided that nothing here needs gradients, which is wrong when the module's parameters do.
Tensors recorded(string_view worker, string_view name, at::TensorList inputs,
                 at::IntArrayRef needed, at::TensorList like, string_view method,
                 std::int64_t version, double timeout, bool traced, std::int64_t /*trace*/) {
  Tensors out;
  if (!inAutogradContext()) {
    out = callTensors(worker, name, inputs, like, method, version, timeout);
    out.push_back(numbered(kNoRemoteBackward, like));
    return out;
  }
  const std::string description = describe(worker, name, method);
  const auto route = std::make_shared<RemoteBackwardContext>(description, timeout);
  Call what = toCall(worker, name, method, version, timeout);
  what.args = route->open(inputs, needed);
  what.ends_gradients = true;
  Tensors came;
  {
    const at::AutoGradMode recording(true);
    came = toTensors(call(std::move(what)));
  }
  const bool leads_back = route->close(came, std::string(worker));
  TORCH_CHECK(!(traced && needed.empty() && leads_back), description,
              " has parameters that need gradients, and this traced call would lose them, because "
              "none of its inputs needs any: give it an input that does (x.requires_grad_()), "
              "trace it under torch.no_grad(), or use weft.call, which torch.compile leaves as it "
              "is");
  out = promised(came, like, inputs, description);
  out.push_back(numbered(RemoteBackwardContext::keep(route), like));
  return out;
}

Tensors goBack(const at::Tensor& route, at::TensorList gradients, at::IntArrayRef outputs,
               at::TensorList inputs, at::IntArrayRef needed, string_view what) {
  const at::Tensor here = route.cpu();
  const Tensors came = RemoteBackwardContext::goBack(
      *here.const_data_ptr<std::int64_t>(), std::string(what), gradients, outputs, inputs, needed);
  TORCH_CHECK(came.size() == needed.size(), "wrong number of gradients from ", what);
  Tensors out;
  for (std::size_t i = 0; i < came.size(); ++i) {
    const at::Tensor& input = inputs[static_cast<std::size_t>(needed[i])];
    out.push_back(came[i].defined() ? came[i].detach().contiguous() : at::zeros_like(input));
  }
  return out;
}

// Meta kernels.

at::Tensor newLike(const at::Tensor& one) {
  return at::empty_symint(one.sym_sizes(),
                          one.options().memory_format(at::MemoryFormat::Contiguous));
}

Tensors newLike(at::TensorList like) {
  Tensors out;
  for (const at::Tensor& one : like)
    out.push_back(newLike(one));
  return out;
}

Tensors callTensorsMeta(string_view /*worker*/, string_view /*name*/, at::TensorList /*inputs*/,
                        at::TensorList like, string_view /*method*/, std::int64_t /*version*/,
                        double /*timeout*/) {
  return newLike(like);
}

Tensors recordedMeta(string_view /*worker*/, string_view /*name*/, at::TensorList /*inputs*/,
                     at::IntArrayRef /*needed*/, at::TensorList like, string_view /*method*/,
                     std::int64_t /*version*/, double /*timeout*/, bool /*traced*/,
                     std::int64_t /*trace*/) {
  Tensors out = newLike(like);
  const auto options = like.empty() ? at::TensorOptions(at::kMeta) : like[0].options();
  out.push_back(at::empty({1}, options.dtype(at::kLong)));
  return out;
}

Tensors goBackMeta(const at::Tensor& /*route*/, at::TensorList /*gradients*/,
                   at::IntArrayRef /*outputs*/, at::TensorList inputs, at::IntArrayRef needed,
                   string_view /*what*/) {
  Tensors out;
  for (const std::int64_t index : needed)
    out.push_back(newLike(inputs[static_cast<std::size_t>(index)]));
  return out;
}

// Autograd.

template <typename Result, typename... Args>
Result dispatch(const char* op, Args... args) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<Result(Args...)>().call(
      args...);
}

Tensors dispatchBack(const at::Tensor& route, at::TensorList gradients, at::IntArrayRef outputs,
                     at::TensorList inputs, at::IntArrayRef needed, string_view what) {
  return dispatch<Tensors, const at::Tensor&, at::TensorList, at::IntArrayRef, at::TensorList,
                  at::IntArrayRef, string_view>("weft::_call_tensors_backward", route, gradients,
                                                outputs, inputs, needed, what);
}

// Tensors in here are no inputs of the function below: no gradients go to them.
struct Target {
  std::string worker;
  std::string name;
  std::string method;
  std::int64_t version;
  double timeout;
  Tensors like;
  std::vector<std::int64_t> needed;
  bool traced;
};

Tensors record(const Target& to, at::TensorList inputs) {
  // Every call in a graph is one of its own: two that look the same must not become one, whose
  // gradients would come twice.
  static std::atomic<std::int64_t> traces{0};
  const at::AutoDispatchBelowADInplaceOrView guard;
  return dispatch<Tensors, string_view, string_view, at::TensorList, at::IntArrayRef,
                  at::TensorList, string_view, std::int64_t, double, bool, std::int64_t>(
      "weft::_call_tensors_recorded", to.worker, to.name, inputs, to.needed, to.like, to.method,
      to.version, to.timeout, to.traced, to.traced ? ++traces : 0);
}

// (torch::autograd::Function takes no lists of tensors.)
struct TensorCallBackward : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) gradients[i] = input_metadata(i).zeros_like();
    }
    TORCH_CHECK(!released, "backward a second time through ", what, ": retain_graph=True");
    variable_list inputs;
    for (const SavedVariable& one : kept)
      inputs.push_back(one.unpack());
    const Tensors came = dispatchBack(route.unpack(), gradients, outputs, inputs, needed, what);
    variable_list out(num_outputs());
    for (std::size_t i = 0; i < needed.size(); ++i)
      out.at(static_cast<std::size_t>(needed[i])) = came.at(i);
    return out;
  }
  void release_variables() override {
    kept.clear();
    route.reset_data();
    released = true;
  }
  std::string name() const override { return "TensorCallBackward"; }

  SavedVariable route;
  std::vector<SavedVariable> kept;
  bool released = false;
  std::vector<std::int64_t> outputs;  // that are differentiable: gradients come for these
  std::vector<std::int64_t> needed;
  std::string what;
};

// With a history that leads to the inputs; where none needs gradients, to a leaf of nobody's, so
// that those of the worker's parameters are found.
Tensors recordWithHistory(const Target& to, at::TensorList inputs) {
  Tensors outputs = record(to, inputs);
  auto node = makeNode<TensorCallBackward>();
  node->route = SavedVariable(outputs.back(), /*is_output=*/false);
  outputs.pop_back();
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    node->kept.emplace_back(input, /*is_output=*/false);
    edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  if (to.needed.empty())
    edges.push_back(torch::autograd::impl::gradient_edge(at::empty({0}).set_requires_grad(true)));
  node->set_next_edges(std::move(edges));
  node->needed = to.needed;
  node->what = describe(to.worker, to.name, to.method);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!torch::autograd::isDifferentiableType(outputs[i].scalar_type())) continue;
    node->outputs.push_back(static_cast<std::int64_t>(i));
    torch::autograd::set_history(outputs[i], NodePtr(node));
  }
  return outputs;
}

bool isTraced() {
  using Mode = c10::impl::TorchDispatchModeKey;
  constexpr std::array kCompilers = {Mode::FAKE, Mode::PROXY, Mode::FUNCTIONAL};
  return std::any_of(kCompilers.begin(), kCompilers.end(), [](Mode mode) {
    return c10::impl::TorchDispatchModeTLS::get_mode(mode).has_value();
  });
}

Tensors differentiableCall(string_view worker, string_view name, at::TensorList inputs,
                           at::TensorList like, string_view method, std::int64_t version,
                           double timeout) {
  std::vector<std::int64_t> needed;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].requires_grad()) needed.push_back(static_cast<std::int64_t>(i));
  }
  const bool traced = isTraced();
  const bool none = needed.empty();
  if (!at::GradMode::is_enabled() || (none && !traced && !inAutogradContext())) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return dispatch<Tensors, string_view, string_view, at::TensorList, at::TensorList, string_view,
                    std::int64_t, double>("weft::call_tensors", worker, name, inputs, like, method,
                                          version, timeout);
  }
  const Target to{.worker = std::string(worker),
                  .name = std::string(name),
                  .method = std::string(method),
                  .version = version,
                  .timeout = timeout,
                  .like = like.vec(),
                  .needed = std::move(needed),
                  .traced = traced};
  if (none && traced) {
    Tensors out = record(to, inputs);
    out.pop_back();
    return out;
  }
  return recordWithHistory(to, inputs);
}

Tensors goBackOnce(const at::Tensor& route, at::TensorList gradients, at::IntArrayRef outputs,
                   at::TensorList inputs, at::IntArrayRef needed, string_view what) {
  const auto needs = [](const at::Tensor& one) { return one.requires_grad(); };
  TORCH_CHECK(
      !(at::GradMode::is_enabled() && std::any_of(gradients.begin(), gradients.end(), needs)),
      "gradients of gradients do not go through a remote call (", what, ")");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return dispatchBack(route, gradients, outputs, inputs, needed, what);
}

}  // namespace

void defineTensorCalls(torch::Library& library) {
  using c10::DispatchKey;
  // A call has effects elsewhere: nothing may drop, fold or reorder it.
  const auto def = [&](const char* schema) {
    library.def(torch::schema(schema, c10::AliasAnalysisKind::CONSERVATIVE));
  };
  def("call_tensors(str worker, str name, Tensor[] inputs, Tensor[] like, *, "
      "str method=\"forward\", int version=0, float timeout=-1.) -> Tensor[]");
  library.impl("call_tensors",
               torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(callTensors)));
  library.impl("call_tensors", torch::dispatch(DispatchKey::Meta, TORCH_FN(callTensorsMeta)));
  library.impl("call_tensors",
               torch::dispatch(DispatchKey::Autograd, TORCH_FN(differentiableCall)));

  // What a compiler's graphs hold of it: forward, and backward.
  def("_call_tensors_recorded(str worker, str name, Tensor[] inputs, int[] needed, Tensor[] like, "
      "str method, int version, float timeout, bool traced, int trace) -> Tensor[]");
  library.impl("_call_tensors_recorded",
               torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(recorded)));
  library.impl("_call_tensors_recorded",
               torch::dispatch(DispatchKey::Meta, TORCH_FN(recordedMeta)));
  library.impl("_call_tensors_recorded",
               torch::dispatch(DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  def("_call_tensors_backward(Tensor route, Tensor[] gradients, int[] outputs, Tensor[] inputs, "
      "int[] needed, str what) -> Tensor[]");
  library.impl("_call_tensors_backward",
               torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(goBack)));
  library.impl("_call_tensors_backward", torch::dispatch(DispatchKey::Meta, TORCH_FN(goBackMeta)));
  library.impl("_call_tensors_backward",
               torch::dispatch(DispatchKey::Autograd, TORCH_FN(goBackOnce)));
}

}  // namespace weft::ops
