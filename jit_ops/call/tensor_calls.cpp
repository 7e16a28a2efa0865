#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "jit_ops/call/calls.h"
#include "jit_ops/call/recording.h"
#include "jit_ops/call/tensor_calls.h"
#include "jit_ops/values/nested_values.h"

namespace weft::ops {

namespace {

using c10::string_view;
using Tensors = std::vector<at::Tensor>;

constexpr const char* kNoGradients =
    "no gradients go through call_tensors: use weft.call, which torch.compile leaves as it is, or ";

Call toCall(string_view worker, string_view name, string_view method, std::int64_t version,
            double timeout) {
  return {.worker = std::string(worker),
          .name = std::string(name),
          .options = {.method = std::string(method), .version = version, .timeout = timeout}};
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

// The results as a compiler was promised them: with the shapes, dtypes and devices of `like`,
// contiguous, without a history, and in memory that neither an input nor another result has.
Tensors matchingLike(const Tensors& came, at::TensorList like, at::TensorList inputs,
                     const std::string& what) {
  TORCH_CHECK(came.size() == like.size(), what, " returned ", came.size(),
              came.size() == 1 ? " tensor; `like` has " : " tensors; `like` has ", like.size());
  Tensors out;
  for (std::size_t i = 0; i < came.size(); ++i) {
    TORCH_CHECK(came[i].sizes() == like[i].sizes() && came[i].dtype() == like[i].dtype() &&
                    came[i].device() == like[i].device(),
                what, " returned ", came[i].dtype(), came[i].sizes(), " on ", came[i].device(),
                " as tensor ", i, "; `like` says ", like[i].dtype(), like[i].sizes(), " on ",
                like[i].device());
    at::Tensor one = came[i].detach().contiguous();
    const auto same = [&](const at::Tensor& other) { return one.is_alias_of(other); };
    const bool shared = std::any_of(inputs.begin(), inputs.end(), same) ||
                        std::any_of(out.begin(), out.end(), same);
    out.push_back(shared ? one.clone() : std::move(one));
  }
  return out;
}

Tensors callTensors(string_view worker, string_view name, at::TensorList inputs,
                    at::TensorList like, string_view method, std::int64_t version, double timeout) {
  Call what = toCall(worker, name, method, version, timeout);
  const std::string description = describe(what);
  // A compiled graph runs with gradients off whether its user has turned them off or not.
  TORCH_CHECK(!inAutogradContext(), kNoGradients,
              "make it outside of torch.distributed.autograd.context() (calling ", description,
              ")");
  for (const at::Tensor& input : inputs)
    what.args.emplace_back(input.detach());
  return matchingLike(toTensors(call(std::move(what))), like, inputs, description);
}

Tensors callTensorsMeta(string_view /*worker*/, string_view /*name*/, at::TensorList /*inputs*/,
                        at::TensorList like, string_view /*method*/, std::int64_t /*version*/,
                        double /*timeout*/) {
  Tensors out;
  for (const at::Tensor& one : like)
    out.push_back(at::empty_symint(one.sym_sizes(),
                                   one.options().memory_format(at::MemoryFormat::Contiguous)));
  return out;
}

bool haveForwardGradient(at::TensorList tensors) {
  return c10::AutogradState::get_tls_state().get_fw_grad_mode() &&
         std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
           return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
         });
}

// The autograd kernel.
Tensors callWithoutGradients(string_view worker, string_view name, at::TensorList inputs,
                             at::TensorList like, string_view method, std::int64_t version,
                             double timeout) {
  TORCH_CHECK(!haveForwardGradient(inputs),
              "an argument has a forward-mode gradient, which no remote call carries: give it ",
              "torch.autograd.forward_ad.unpack_dual(x).primal, or use reverse mode (calling ",
              describe(toCall(worker, name, method, version, timeout)), ")");
  const auto needs = [](const at::Tensor& one) { return one.requires_grad(); };
  TORCH_CHECK(!at::GradMode::is_enabled() || std::none_of(inputs.begin(), inputs.end(), needs),
              kNoGradients, "give it x.detach(), or make it under torch.no_grad() (calling ",
              describe(toCall(worker, name, method, version, timeout)), ")");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("weft::call_tensors", "")
      .typed<decltype(callTensors)>()
      .call(worker, name, inputs, like, method, version, timeout);
}

}  // namespace

void defineTensorCalls(torch::Library& library) {
  using c10::DispatchKey;
  // A call has effects elsewhere, so a compiler must not drop, fold or reorder it.
  library.def(
      torch::schema("call_tensors(str worker, str name, Tensor[] inputs, Tensor[] like, *, "
                    "str method=\"forward\", int version=0, float timeout=-1.) -> Tensor[]",
                    c10::AliasAnalysisKind::CONSERVATIVE));
  library.impl("call_tensors",
               torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(callTensors)));
  library.impl("call_tensors", torch::dispatch(DispatchKey::Meta, TORCH_FN(callTensorsMeta)));
  library.impl("call_tensors",
               torch::dispatch(DispatchKey::Autograd, TORCH_FN(callWithoutGradients)));
}

}  // namespace weft::ops
