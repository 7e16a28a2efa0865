#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jit_ops/call/calls.h"
#include "jit_ops/call/interop_pool.h"
#include "jit_ops/call/operators.h"
#include "jit_ops/call/remote_backward_context.h"
#include "jit_ops/values/nested_values.h"

namespace weft::ops {

namespace {

using c10::string_view;
using Tensors = std::vector<at::Tensor>;
using torch::autograd::AutogradContext;

Call toCall(string_view worker, string_view name, string_view method, std::int64_t version,
            double timeout) {
  return {.worker = std::string(worker),
          .name = std::string(name),
          .method = std::string(method),
          .version = version,
          .timeout = timeout};
}

Tensors toTensors(const at::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  Tensors out;
  if (value.isTuple()) {
    for (const at::IValue& element : value.toTupleRef().elements()) {
      TORCH_CHECK(element.isTensor(), "the result has an element that is not a tensor: ",
                  element.type()->annotation_str());
      out.push_back(element.toTensor());
    }
    return out;
  }
  TORCH_CHECK(false, "the result must be a tensor, or a tuple or list of tensors, got ",
              value.type()->annotation_str());
}

// The results as a compiler was promised them: with the shapes and dtypes of `like`, contiguous,
// without a history, and in memory that neither an input nor another result has.
Tensors promised(const Tensors& came, at::TensorList like, at::TensorList inputs,
                 const std::string& what) {
  TORCH_CHECK(came.size() == like.size(), what, " returned ", came.size(),
              came.size() == 1 ? " tensor; `like` has " : " tensors; `like` has ", like.size());
  Tensors out;
  for (std::size_t i = 0; i < came.size(); ++i) {
    TORCH_CHECK(came[i].sizes() == like[i].sizes() && came[i].dtype() == like[i].dtype(), what,
                " returned ", came[i].dtype(), came[i].sizes(), " as tensor ", i, "; `like` says ",
                like[i].dtype(), like[i].sizes());
    at::Tensor one = came[i].detach().contiguous();
    const auto same = [&](const at::Tensor& other) { return one.is_alias_of(other); };
    const bool shared = std::any_of(inputs.begin(), inputs.end(), same) ||
                        std::any_of(out.begin(), out.end(), same);
    out.push_back(shared ? one.clone() : std::move(one));
  }
  return out;
}

// Kernels.

Tensors callTensors(string_view worker, string_view name, at::TensorList inputs,
                    at::TensorList like, string_view method, std::int64_t version, double timeout) {
  Call what = toCall(worker, name, method, version, timeout);
  const std::string description = describe(what);
  for (const at::Tensor& input : inputs)
    what.args.emplace_back(input.detach());
  return promised(toTensors(call(std::move(what))), like, inputs, description);
}

// The call's number as a tensor, which a graph keeps from forward to backward.
at::Tensor numbered(std::int64_t number, at::TensorList like) {
  const auto options = like.empty() ? at::TensorOptions() : like[0].options();
  return at::full({1}, number, options.dtype(at::kLong).requires_grad(false));
}

// The device's engine thread would wait for gradients that the same thread has to pass on, and hold
// up every other backward on the device.
void checkOnHost(at::TensorList tensors, const std::string& what) {
  for (const at::Tensor& tensor : tensors) {
    const c10::Device device = tensor.device();
    TORCH_CHECK(device.is_cpu() || device.is_meta(),
                "gradients go through call_tensors on the CPU only, but ", what,
                " has a tensor on ", device, ": use weft.call, or give and return CPU tensors");
  }
}

// The outputs, followed by the call's number. `traced` with an empty `needed`: the compiler has
// decided that nothing here needs gradients, which is wrong if the module's parameters do.
Tensors callRecorded(string_view worker, string_view name, at::TensorList inputs,
                     at::IntArrayRef needed, at::TensorList like, string_view method,
                     std::int64_t version, double timeout, bool traced, std::int64_t /*trace*/) {
  Tensors out;
  if (!inAutogradContext()) {
    out = callTensors(worker, name, inputs, like, method, version, timeout);
    out.push_back(numbered(whyNotRecorded(), like));
    return out;
  }
  Call what = toCall(worker, name, method, version, timeout);
  const std::string description = describe(what);
  for (const std::int64_t index : needed)
    checkOnHost(inputs[static_cast<std::size_t>(index)], description);
  if (!needed.empty()) checkOnHost(like, description);
  const auto context = std::make_shared<RemoteBackwardContext>(timeout);
  what.args = context->open(inputs, needed);
  what.ends_gradients = true;
  Tensors came;
  {
    const at::AutoGradMode recording(true);
    came = toTensors(call(std::move(what)));
  }
  if (!needed.empty()) checkOnHost(came, description);
  const bool leads_back = context->close(came, std::string(worker));
  TORCH_CHECK(!(traced && needed.empty() && leads_back), description,
              " has parameters that need gradients, and this traced call would lose them, because "
              "none of its inputs needs any: give it an input that does (x.requires_grad_()), "
              "trace it under torch.no_grad(), or use weft.call, which torch.compile leaves as it "
              "is");
  out = promised(came, like, inputs, description);
  out.push_back(numbered(RemoteBackwardContext::keep(context), like));
  return out;
}

Tensors callBackward(const at::Tensor& route, at::TensorList gradients, at::IntArrayRef outputs,
                     at::TensorList inputs, at::IntArrayRef needed, string_view what) {
  const at::Tensor here = route.cpu();
  const Tensors came = RemoteBackwardContext::backward(
      *here.const_data_ptr<std::int64_t>(), std::string(what), gradients, outputs, inputs, needed);
  TORCH_CHECK(came.size() == needed.size(), "got ", came.size(), " gradients from ", what,
              ", and needed ", needed.size());
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

Tensors callRecordedMeta(string_view /*worker*/, string_view /*name*/, at::TensorList /*inputs*/,
                         at::IntArrayRef /*needed*/, at::TensorList like, string_view /*method*/,
                         std::int64_t /*version*/, double /*timeout*/, bool /*traced*/,
                         std::int64_t /*trace*/) {
  Tensors out = newLike(like);
  const auto options = like.empty() ? at::TensorOptions(at::kMeta) : like[0].options();
  out.push_back(at::empty({1}, options.dtype(at::kLong)));
  return out;
}

Tensors callBackwardMeta(const at::Tensor& /*route*/, at::TensorList /*gradients*/,
                         at::IntArrayRef /*outputs*/, at::TensorList inputs, at::IntArrayRef needed,
                         string_view /*what*/) {
  Tensors out;
  for (const std::int64_t index : needed)
    out.push_back(newLike(inputs[static_cast<std::size_t>(index)]));
  return out;
}

// Autograd.

// Calls the operator whose kernel is a `Function`.
template <typename Function, typename... Args>
Tensors dispatch(const char* op, Args&&... args) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<Function>().call(
      std::forward<Args>(args)...);
}

// What a recorded call takes besides its inputs; no gradients go to it.
struct Target {
  const Call& call;
  at::TensorList like;
  std::vector<std::int64_t> needed;
  bool traced;
};

Tensors record(const Target& to, at::TensorList inputs) {
  // The number keeps a compiler from merging two equal calls, whose gradients would be sent twice.
  static std::atomic<std::int64_t> traces{0};
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Call& call = to.call;
  return dispatch<decltype(callRecorded)>("weft::_call_tensors_recorded", call.worker, call.name,
                                          inputs, to.needed, to.like, call.method, call.version,
                                          call.timeout, to.traced, to.traced ? ++traces : 0);
}

// Gives the results a history that leads to the inputs, and to `leaf`.
struct RecordedCall : torch::autograd::Function<RecordedCall> {
  static Tensors forward(AutogradContext* saved, const std::optional<at::Tensor>& /*leaf*/,
                         at::TensorList inputs, const Target& to) {
    Tensors outputs = record(to, inputs);
    Tensors kept = inputs.vec();
    kept.push_back(std::move(outputs.back()));  // the call's number
    outputs.pop_back();
    saved->save_for_backward(std::move(kept));
    std::vector<std::int64_t> differentiable;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (torch::autograd::isDifferentiableType(outputs[i].scalar_type()))
        differentiable.push_back(static_cast<std::int64_t>(i));
    }
    saved->saved_data["outputs"] = std::move(differentiable);
    saved->saved_data["needed"] = to.needed;
    saved->saved_data["what"] = describe(to.call);
    return outputs;
  }

  static Tensors backward(AutogradContext* saved, const Tensors& gradients) {
    const auto outputs = saved->saved_data["outputs"].toIntVector();
    const auto needed = saved->saved_data["needed"].toIntVector();
    Tensors inputs = saved->get_saved_variables();
    const at::Tensor route = std::move(inputs.back());
    inputs.pop_back();
    Tensors given;
    for (const std::int64_t index : outputs)
      given.push_back(gradients.at(static_cast<std::size_t>(index)));
    const Tensors came =
        dispatch<decltype(callBackward)>("weft::_call_tensors_backward", route, given, outputs,
                                         inputs, needed, saved->saved_data["what"].toStringRef());
    Tensors out(1 + inputs.size() + 1);  // of the leaf, of the inputs, of the target
    for (std::size_t i = 0; i < needed.size(); ++i)
      out.at(1 + static_cast<std::size_t>(needed[i])) = came.at(i);
    return out;
  }
};

bool isTraced() {
  using Mode = c10::impl::TorchDispatchModeKey;
  constexpr std::array kCompilers = {Mode::FAKE, Mode::PROXY, Mode::FUNCTIONAL};
  return std::any_of(kCompilers.begin(), kCompilers.end(), [](Mode mode) {
    return c10::impl::TorchDispatchModeTLS::get_mode(mode).has_value();
  });
}

// Asked before the call is recorded: within, torch looks at no tangents.
bool haveForwardGradient(at::TensorList tensors) {
  return c10::AutogradState::get_tls_state().get_fw_grad_mode() &&
         std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
           return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
         });
}

Tensors differentiableCall(string_view worker, string_view name, at::TensorList inputs,
                           at::TensorList like, string_view method, std::int64_t version,
                           double timeout) {
  TORCH_CHECK(!haveForwardGradient(inputs),
              "an argument has a forward-mode gradient, which no remote call carries: give it ",
              "torch.autograd.forward_ad.unpack_dual(x).primal, or use reverse mode (calling ",
              describe(toCall(worker, name, method, version, timeout)), ")");
  std::vector<std::int64_t> needed;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].requires_grad()) needed.push_back(static_cast<std::int64_t>(i));
  }
  const bool traced = isTraced();
  const bool none = needed.empty();
  if (!at::GradMode::is_enabled() || (none && !traced && !inAutogradContext())) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return dispatch<decltype(callTensors)>("weft::call_tensors", worker, name, inputs, like, method,
                                           version, timeout);
  }
  const Call call = toCall(worker, name, method, version, timeout);
  const Target to{.call = call, .like = like, .needed = std::move(needed), .traced = traced};
  if (none && traced) {
    Tensors out = record(to, inputs);
    out.pop_back();
    return out;
  }
  // If no input needs gradients, an unused leaf does, so that backward reaches the worker's
  // parameters.
  std::optional<at::Tensor> leaf;
  if (none) leaf = at::empty({0}).set_requires_grad(true);
  return RecordedCall::apply(leaf, inputs, to);
}

Tensors backwardOnce(const at::Tensor& route, at::TensorList gradients, at::IntArrayRef outputs,
                     at::TensorList inputs, at::IntArrayRef needed, string_view what) {
  const auto needs = [](const at::Tensor& one) { return one.requires_grad(); };
  TORCH_CHECK(
      !(at::GradMode::is_enabled() && std::any_of(gradients.begin(), gradients.end(), needs)),
      "gradients of gradients do not go through a remote call (", what, ")");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return dispatch<decltype(callBackward)>("weft::_call_tensors_backward", route, gradients, outputs,
                                          inputs, needed, what);
}

}  // namespace

void defineTensorCalls(torch::Library& library) {
  installInteropPool();  // their backward waits in it
  using c10::DispatchKey;
  // A call has effects elsewhere, so a compiler must not drop, fold or reorder it.
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

  // The forward and the backward of call_tensors in a compiler's graphs.
  def("_call_tensors_recorded(str worker, str name, Tensor[] inputs, int[] needed, Tensor[] like, "
      "str method, int version, float timeout, bool traced, int trace) -> Tensor[]");
  library.impl("_call_tensors_recorded",
               torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(callRecorded)));
  library.impl("_call_tensors_recorded",
               torch::dispatch(DispatchKey::Meta, TORCH_FN(callRecordedMeta)));
  library.impl("_call_tensors_recorded",
               torch::dispatch(DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  def("_call_tensors_backward(Tensor route, Tensor[] gradients, int[] outputs, Tensor[] inputs, "
      "int[] needed, str what) -> Tensor[]");
  library.impl("_call_tensors_backward",
               torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(callBackward)));
  library.impl("_call_tensors_backward",
               torch::dispatch(DispatchKey::Meta, TORCH_FN(callBackwardMeta)));
  library.impl("_call_tensors_backward",
               torch::dispatch(DispatchKey::Autograd, TORCH_FN(backwardOnce)));
}

}  // namespace weft::ops
