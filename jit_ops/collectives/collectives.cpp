#include "jit_ops/collectives/collectives.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "jit_ops/collectives/collective_starts.h"

namespace weft::ops {

namespace {

using c10::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Kernels. All wait until the operation is over on this rank, at most the group's timeout.

void send(const at::Tensor& x, std::int64_t to, string_view name, std::int64_t tag) {
  startSend(x, to, name, tag).finish();
}

at::Tensor recv(const at::Tensor& like, std::int64_t from, string_view name, std::int64_t tag) {
  return startRecv(like, from, name, tag).finish();
}

at::Tensor allReduce(const at::Tensor& x, string_view op, string_view name) {
  return startAllReduce(x, op, name).finish();
}

at::Tensor broadcast(const at::Tensor& x, std::int64_t from, string_view name) {
  return startBroadcast(x, from, name).finish();
}

at::Tensor reduce(const at::Tensor& x, std::int64_t to, string_view op, string_view name) {
  return startReduce(x, to, op, name).finish();
}

at::Tensor gather(const at::Tensor& x, std::int64_t to, string_view name) {
  return startGather(x, to, name).finish();
}

at::Tensor gatherMeta(const at::Tensor& x, std::int64_t to, string_view name) {
  return at::empty_symint(gatheredSizes(x, *groupOf(name), to), x.options());
}

at::Tensor scatter(const at::Tensor& x, std::int64_t from, string_view name) {
  return startScatter(x, from, name).finish();
}

at::Tensor scatterMeta(const at::Tensor& x, std::int64_t /*from*/, string_view /*name*/) {
  TORCH_CHECK(x.dim() > 0, "scatter takes a tensor with a row for each rank, or with no rows");
  return at::empty_symint(x.sym_sizes().slice(1), x.options());
}

at::Tensor sameMeta(const at::Tensor& x) { return at::empty_like(x, at::MemoryFormat::Contiguous); }

// Autograd. A collective is linear: its gradient is the collective that goes the other way, through
// the same operators, so that gradients of gradients are right as well.

at::Tensor differentiableAllReduce(const at::Tensor& x, string_view op, string_view name);
at::Tensor differentiableBroadcast(const at::Tensor& x, std::int64_t from, string_view name);
at::Tensor differentiableReduce(const at::Tensor& x, std::int64_t to, string_view op,
                                string_view name);
at::Tensor differentiableGather(const at::Tensor& x, std::int64_t to, string_view name);
at::Tensor differentiableScatter(const at::Tensor& x, std::int64_t from, string_view name);

// Calls the operator again, below autograd: the kernel, or the meta kernel of a tracer.
template <typename... Args>
at::Tensor below(const char* op, Args... args) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<at::Tensor(Args...)>().call(
      args...);
}

void checkLinear(const std::string& op) {
  TORCH_CHECK(op == "sum" || op == "avg", "gradients go through the reductions sum and avg, not '",
              op, "'");
}

struct AllReduce : torch::autograd::Function<AllReduce> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, std::string op,
                            std::string name) {
    saved->saved_data["op"] = op;
    saved->saved_data["name"] = name;
    return below<const at::Tensor&, string_view, string_view>("weft::all_reduce", x, op, name);
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    const std::string op = saved->saved_data["op"].toStringRef();
    checkLinear(op);
    return {
        differentiableAllReduce(gradients[0], op, saved->saved_data["name"].toStringRef()), {}, {}};
  }
};

struct Broadcast : torch::autograd::Function<Broadcast> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, std::int64_t from,
                            std::string name) {
    saved->saved_data["from"] = from;
    saved->saved_data["name"] = name;
    return below<const at::Tensor&, std::int64_t, string_view>("weft::broadcast", x, from, name);
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    return {differentiableReduce(gradients[0], saved->saved_data["from"].toInt(), "sum",
                                 saved->saved_data["name"].toStringRef()),
            {},
            {}};
  }
};

struct Reduce : torch::autograd::Function<Reduce> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, std::int64_t to,
                            std::string op, std::string name) {
    saved->saved_data["to"] = to;
    saved->saved_data["op"] = op;
    saved->saved_data["name"] = name;
    return below<const at::Tensor&, std::int64_t, string_view, string_view>("weft::reduce", x, to,
                                                                            op, name);
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    const std::string op = saved->saved_data["op"].toStringRef();
    const std::string name = saved->saved_data["name"].toStringRef();
    checkLinear(op);
    at::Tensor gradient =
        differentiableBroadcast(gradients[0], saved->saved_data["to"].toInt(), name);
    if (op == "avg") gradient = gradient / groupOf(name)->getSize();
    return {gradient, {}, {}, {}};
  }
};

struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, std::int64_t to,
                            std::string name) {
    saved->saved_data["to"] = to;
    saved->saved_data["name"] = name;
    return below<const at::Tensor&, std::int64_t, string_view>("weft::gather", x, to, name);
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    return {differentiableScatter(gradients[0], saved->saved_data["to"].toInt(),
                                  saved->saved_data["name"].toStringRef()),
            {},
            {}};
  }
};

struct Scatter : torch::autograd::Function<Scatter> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, std::int64_t from,
                            std::string name) {
    saved->saved_data["from"] = from;
    saved->saved_data["name"] = name;
    return below<const at::Tensor&, std::int64_t, string_view>("weft::scatter", x, from, name);
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    return {differentiableGather(gradients[0], saved->saved_data["from"].toInt(),
                                 saved->saved_data["name"].toStringRef()),
            {},
            {}};
  }
};

at::Tensor differentiableAllReduce(const at::Tensor& x, string_view op, string_view name) {
  return AllReduce::apply(x, std::string(op), std::string(name));
}

at::Tensor differentiableBroadcast(const at::Tensor& x, std::int64_t from, string_view name) {
  return Broadcast::apply(x, from, std::string(name));
}

at::Tensor differentiableReduce(const at::Tensor& x, std::int64_t to, string_view op,
                                string_view name) {
  return Reduce::apply(x, to, std::string(op), std::string(name));
}

at::Tensor differentiableGather(const at::Tensor& x, std::int64_t to, string_view name) {
  return Gather::apply(x, to, std::string(name));
}

at::Tensor differentiableScatter(const at::Tensor& x, std::int64_t from, string_view name) {
  return Scatter::apply(x, from, std::string(name));
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

}  // namespace

void defineCollectives(torch::Library& library) {
  using torch::CppFunction;
  // Nothing may drop, fold or reorder what other ranks take part in.
  const auto asked = [](const char* schema) {
    return torch::schema(schema, c10::AliasAnalysisKind::CONSERVATIVE);
  };
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
      "send", TORCH_FN(send), [](const at::Tensor&, std::int64_t, string_view, std::int64_t) {},
      TORCH_FN(sendWithoutGradients));
  def("recv(Tensor like, int src, str group, int tag=0) -> Tensor");
  impl(
      "recv", TORCH_FN(recv),
      [](const at::Tensor& like, std::int64_t, string_view, std::int64_t) {
        return sameMeta(like);
      },
      CppFunction::makeFallthrough());
  def("all_reduce(Tensor x, str op, str group) -> Tensor");
  impl(
      "all_reduce", TORCH_FN(allReduce),
      [](const at::Tensor& x, string_view, string_view) { return sameMeta(x); },
      TORCH_FN(differentiableAllReduce));
  def("broadcast(Tensor x, int src, str group) -> Tensor");
  impl(
      "broadcast", TORCH_FN(broadcast),
      [](const at::Tensor& x, std::int64_t, string_view) { return sameMeta(x); },
      TORCH_FN(differentiableBroadcast));
  def("reduce(Tensor x, int dst, str op, str group) -> Tensor");
  impl(
      "reduce", TORCH_FN(reduce),
      [](const at::Tensor& x, std::int64_t, string_view, string_view) { return sameMeta(x); },
      TORCH_FN(differentiableReduce));
  def("gather(Tensor x, int dst, str group) -> Tensor");
  impl("gather", TORCH_FN(gather), TORCH_FN(gatherMeta), TORCH_FN(differentiableGather));
  def("scatter(Tensor x, int src, str group) -> Tensor");
  impl("scatter", TORCH_FN(scatter), TORCH_FN(scatterMeta), TORCH_FN(differentiableScatter));

  library.def(asked("barrier(str group) -> ()"),
              [](string_view name) { startBarrier(name).finish(); });
  library.def(asked("group_rank(str group) -> int"),
              [](string_view name) { return static_cast<std::int64_t>(groupOf(name)->getRank()); });
  library.def(asked("group_size(str group) -> int"),
              [](string_view name) { return static_cast<std::int64_t>(groupOf(name)->getSize()); });
}

}  // namespace weft::ops
