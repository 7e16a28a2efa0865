#include "jit_ops/collectives/collectives.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/library.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jit_ops/collectives/collective_starts.h"

namespace weft::ops {

namespace {

using c10::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Operator;
using torch::jit::Stack;

// Nothing may drop, fold or reorder what other ranks take part in.
constexpr auto kEffects = c10::AliasAnalysisKind::CONSERVATIVE;

// The kernels of an operator that begins with `start`.
template <auto start>
struct Kernels;

template <typename... Rest, PendingCollective (*start)(bool, const at::Tensor&, Rest...)>
struct Kernels<start> {
  // Waits until the operation is over on this rank, at most the group's timeout.
  static at::Tensor run(const at::Tensor& x, Rest... rest) {
    return start(/*is_async=*/false, x, rest...).finish();
  }
  // For tracers, where the result is like `x`.
  static at::Tensor same(const at::Tensor& x, Rest... /*rest*/) {
    return at::empty_like(x, at::MemoryFormat::Contiguous);
  }
};

at::Tensor gatherMeta(const at::Tensor& x, std::int64_t to, string_view name) {
  return at::empty_symint(gatheredSizes(x, *groupOf(name), to), x.options());
}

at::Tensor scatterMeta(const at::Tensor& x, std::int64_t /*from*/, string_view /*name*/) {
  TORCH_CHECK(x.dim() > 0, "scatter takes a tensor with a row for each rank, or with no rows");
  return at::empty_symint(x.sym_sizes().slice(1), x.options());
}

// Autograd. A collective is linear: its gradient is the collective that goes the other way, through
// the same operators, so that gradients of gradients are right as well.

struct Collective {
  std::string name;   // of the operator
  std::int64_t root;  // unused by all_reduce
  std::string op;     // of a reduction
  std::string group;
};

// Calls the operator again, below autograd: the kernel, or the meta kernel of a tracer.
at::Tensor below(const at::Tensor& x, const Collective& what) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& [name, root, op, group] = what;
  const auto found = c10::Dispatcher::singleton().findSchemaOrThrow(("weft::" + name).c_str(), "");
  if (name == "all_reduce")
    return found.typed<decltype(Kernels<&startAllReduce>::run)>().call(x, op, group);
  if (name == "reduce")
    return found.typed<decltype(Kernels<&startReduce>::run)>().call(x, root, op, group);
  return found.typed<decltype(Kernels<&startGather>::run)>().call(x, root, group);
}

at::Tensor differentiable(const at::Tensor& x, const Collective& what);

at::Tensor gradientOf(const Collective& what, const at::Tensor& gradient) {
  static const std::map<std::string, std::string> kOpposites = {{"all_reduce", "all_reduce"},
                                                                {"broadcast", "reduce"},
                                                                {"reduce", "broadcast"},
                                                                {"gather", "scatter"},
                                                                {"scatter", "gather"}};
  const auto& [name, root, op, group] = what;
  TORCH_CHECK(op.empty() || op == "sum" || op == "avg",
              "gradients go through the reductions sum and avg, not '", op, "'");
  const bool reduce = name == "reduce";
  const std::string back_op = name == "broadcast" ? "sum" : reduce ? "" : op;
  at::Tensor out = differentiable(gradient, {kOpposites.at(name), root, back_op, group});
  return reduce && op == "avg" ? out / groupOf(group)->getSize() : out;
}

struct LinearCollective : torch::autograd::Function<LinearCollective> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, const Collective& what) {
    saved->saved_data["name"] = what.name;
    saved->saved_data["root"] = what.root;
    saved->saved_data["op"] = what.op;
    saved->saved_data["group"] = what.group;
    return below(x, what);
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    auto& data = saved->saved_data;
    const Collective what{data["name"].toStringRef(), data["root"].toInt(),
                          data["op"].toStringRef(), data["group"].toStringRef()};
    return {gradientOf(what, gradients[0]), {}};
  }
};

at::Tensor differentiable(const at::Tensor& x, const Collective& what) {
  return LinearCollective::apply(x, what);
}

// Messages carry no gradients, so a tensor that needs them is refused rather than cut off.
void sendWithoutGradients(const at::Tensor& x, std::int64_t to, string_view name,
                          std::int64_t tag) {
  TORCH_CHECK(!(at::GradMode::is_enabled() && x.requires_grad()),
              "send carries no gradients: send x.detach(), or call over RPC, which carries them");
  const at::AutoDispatchBelowADInplaceOrView guard;
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("weft::send", "")
      .typed<void(const at::Tensor&, std::int64_t, string_view, std::int64_t)>()
      .call(x, to, name, tag);
}

// The collectives as futures, for TorchScript's `fut.wait()` and torch.jit.wait: the dispatcher
// knows no such type, so these are operators of TorchScript's own, which saved models keep.

// An operator that takes what `start` takes. Futures carry no gradients, so a tensor that needs
// them is refused rather than cut off; `name` is the operator that carries them, null where the
// tensor is not sent.
template <typename... Args>
Operator async(const char* schema, const char* name,
               PendingCollective (*start)(bool, const at::Tensor&, Args...)) {
  const auto run = [name, start](Stack& stack) {
    constexpr std::size_t kCount = 1 + sizeof...(Args);
    const at::Tensor x = torch::jit::peek(stack, 0, kCount).toTensor();
    TORCH_CHECK(name == nullptr || !(at::GradMode::is_enabled() && x.requires_grad()), name,
                "_async carries no gradients: give it x.detach(), or use ", name);
    auto started = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return start(/*is_async=*/true, x.detach(),
                   torch::jit::peek(stack, I + 1, kCount).to<Args>()...);
    }
    (std::index_sequence_for<Args...>());
    torch::jit::drop(stack, kCount);
    torch::jit::push(stack, std::move(started).future());
  };
  return Operator(schema, run, kEffects);
}

}  // namespace

void defineCollectives(torch::Library& library) {
  using torch::CppFunction;
  const auto asked = [](const char* schema) { return torch::schema(schema, kEffects); };
  const auto def = [&](const char* schema) { library.def(asked(schema)); };
  const auto impl = [&](const char* op, auto&& kernel, auto&& meta, auto&& autograd) {
    using c10::DispatchKey;
    library.impl(op, torch::dispatch(DispatchKey::CompositeExplicitAutograd,
                                     std::forward<decltype(kernel)>(kernel)));
    library.impl(op, torch::dispatch(DispatchKey::Meta, std::forward<decltype(meta)>(meta)));
    library.impl(
        op, torch::dispatch(DispatchKey::Autograd, std::forward<decltype(autograd)>(autograd)));
  };

  def("send(Tensor x, int dst, str group, int tag=0) -> ()");
  impl(
      "send",
      [](const at::Tensor& x, std::int64_t to, string_view group, std::int64_t tag) {
        startSend(/*is_async=*/false, x, to, group, tag).finish();
      },
      [](const at::Tensor&, std::int64_t, string_view, std::int64_t) {},
      TORCH_FN(sendWithoutGradients));
  def("recv(Tensor like, int src, str group, int tag=0) -> Tensor");
  impl("recv", TORCH_FN(Kernels<&startRecv>::run), TORCH_FN(Kernels<&startRecv>::same),
       CppFunction::makeFallthrough());
  def("all_reduce(Tensor x, str op, str group) -> Tensor");
  impl("all_reduce", TORCH_FN(Kernels<&startAllReduce>::run),
       TORCH_FN(Kernels<&startAllReduce>::same),
       [](const at::Tensor& x, string_view op, string_view group) {
         return differentiable(x, {"all_reduce", 0, std::string(op), std::string(group)});
       });
  def("reduce(Tensor x, int dst, str op, str group) -> Tensor");
  impl("reduce", TORCH_FN(Kernels<&startReduce>::run), TORCH_FN(Kernels<&startReduce>::same),
       [](const at::Tensor& x, std::int64_t to, string_view op, string_view group) {
         return differentiable(x, {"reduce", to, std::string(op), std::string(group)});
       });
  // The others, from or to a rank without a reduction.
  const auto rooted = [](const char* name) {
    return [name](const at::Tensor& x, std::int64_t root, string_view group) {
      return differentiable(x, {name, root, "", std::string(group)});
    };
  };
  def("broadcast(Tensor x, int src, str group) -> Tensor");
  impl("broadcast", TORCH_FN(Kernels<&startBroadcast>::run),
       TORCH_FN(Kernels<&startBroadcast>::same), rooted("broadcast"));
  def("gather(Tensor x, int dst, str group) -> Tensor");
  impl("gather", TORCH_FN(Kernels<&startGather>::run), TORCH_FN(gatherMeta), rooted("gather"));
  def("scatter(Tensor x, int src, str group) -> Tensor");
  impl("scatter", TORCH_FN(Kernels<&startScatter>::run), TORCH_FN(scatterMeta), rooted("scatter"));

  library.def(asked("barrier(str group) -> ()"),
              [](string_view name) { startBarrier(/*is_async=*/false, name).finish(); });
  library.def(asked("group_rank(str group) -> int"),
              [](string_view name) { return static_cast<std::int64_t>(groupOf(name)->getRank()); });
  library.def(asked("group_size(str group) -> int"),
              [](string_view name) { return static_cast<std::int64_t>(groupOf(name)->getSize()); });
}

std::vector<std::optional<Operator>> asyncCollectives() {
  return {
      async("weft::send_async(Tensor x, int dst, str group, int tag=0) -> Future(NoneType)", "send",
            &startSend),
      async("weft::recv_async(Tensor like, int src, str group, int tag=0) -> Future(Tensor)",
            nullptr, &startRecv),
      async("weft::all_reduce_async(Tensor x, str op, str group) -> Future(Tensor)", "all_reduce",
            &startAllReduce),
      async("weft::broadcast_async(Tensor x, int src, str group) -> Future(Tensor)", "broadcast",
            &startBroadcast),
      async("weft::reduce_async(Tensor x, int dst, str op, str group) -> Future(Tensor)", "reduce",
            &startReduce),
      async("weft::gather_async(Tensor x, int dst, str group) -> Future(Tensor)", "gather",
            &startGather),
      async("weft::scatter_async(Tensor x, int src, str group) -> Future(Tensor)", "scatter",
            &startScatter),
      Operator(
          "weft::barrier_async(str group) -> Future(NoneType)",
          [](Stack& stack) {
            const std::string group = torch::jit::pop(stack).toStringRef();
            torch::jit::push(stack, startBarrier(/*is_async=*/true, group).future());
          },
          kEffects),
  };
}

}  // namespace weft::ops
