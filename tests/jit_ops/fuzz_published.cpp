// libFuzzer: calls of published functions, as a peer's stack of values says them: any values in any
// order under any names. A call runs with arguments of the types that its signature says, or its
// caller gets an error.
//
// How torch's unpickler makes such a stack of bytes is torch's affair.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/zeros.h>

#include "jit_ops/serve/published.h"
#include "jit_ops/serve/servable.h"
#include "jit_ops/serve/service.h"
#include "rpc_backend/serve/callback/script_service.h"
#include "tests/support/fuzz_input.h"

namespace {

using namespace weft::ops;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;

constexpr int kDeepest = 4;
constexpr const char* kSchema =
    "f(Tensor x, float by=2.0, float[] all=[], Dict(str, int)? counts=None, (int, float)? "
    "pair=None, "
    "str? name=None, bool flag=False, Tensor[]? more=None) -> Any";

const at::Tensor& tensor() {
  static const at::Tensor one = at::zeros({2});
  return one;
}

// Whatever has come through: each of these throws for a value of another type.
at::IValue use(Values args) {
  try {
    require(args.size() == 8);
    args[0].toTensor();
    args[1].toDouble();
    args[2].toDoubleVector();
    if (!args[3].isNone()) {
      for (const auto& entry : args[3].toGenericDict()) {
        entry.key().toStringRef();
        entry.value().toInt();
      }
    }
    if (!args[4].isNone()) {
      require(args[4].toTupleRef().elements().size() == 2);
      args[4].toTupleRef().elements()[0].toInt();
      args[4].toTupleRef().elements()[1].toDouble();
    }
    if (!args[5].isNone()) args[5].toStringRef();
    args[6].toBool();
    if (!args[7].isNone()) args[7].toTensorVector();
  } catch (const c10::Error&) {
    require(false);
  }
  return std::move(args[0]);
}

void publishOnce() {
  static const bool done = [] {
    installService();
    publish("f", servable(kSchema, &use), 0);
    publish("f", servable("f(int n) -> int", [](Values args) { return args[0].toInt(); }), 0);
    publish("g", servable("g() -> ()", [](const Values&) { return at::IValue(); }), 0);
    return true;
  }();
  require(done);
}

std::string word(FuzzInput& input) {
  static constexpr const char* kWords[] = {"f",    "g",    "forward", "x",    "by", "all", "counts",
                                           "pair", "name", "flag",    "more", "n",  ""};
  const std::size_t which = input.below(std::size(kWords) + 1);
  return which < std::size(kWords) ? kWords[which] : input.text(input.below(12));
}

at::IValue value(FuzzInput& input, int depth = 0) {
  switch (input.below(depth < kDeepest ? 12 : 7)) {
    case 0:
      return {};
    case 1:
      return tensor();
    case 2:
      return input.oneIn(4) ? input.number<std::int64_t>()
                            : static_cast<std::int64_t>(input.below(4));
    case 3:
      return input.number<double>();
    case 4:
      return word(input);
    case 5:
      return input.oneIn(2);
    case 6: {
      c10::List<std::string> names;
      for (std::size_t i = input.below(4); i > 0; --i)
        names.push_back(word(input));
      return names;
    }
    case 7: {
      c10::List<std::int64_t> numbers;
      for (std::size_t i = input.below(4); i > 0; --i)
        numbers.push_back(input.number<std::int8_t>());
      return numbers;
    }
    case 8: {
      c10::List<at::Tensor> tensors;
      for (std::size_t i = input.below(3); i > 0; --i)
        tensors.push_back(tensor());
      return tensors;
    }
    case 9: {
      c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
      for (std::size_t i = input.below(3); i > 0; --i)
        dict.insert_or_assign(word(input), value(input, depth + 1));
      return dict;
    }
    case 10: {
      c10::List<at::IValue> any(c10::AnyType::get());
      for (std::size_t i = input.below(4); i > 0; --i)
        any.push_back(value(input, depth + 1));
      return any;
    }
    default: {
      std::vector<at::IValue> elements;
      for (std::size_t i = input.below(4); i > 0; --i)
        elements.push_back(value(input, depth + 1));
      return c10::ivalue::Tuple::create(std::move(elements));
    }
  }
}

// A call's header as the caller writes it, and as nobody would.
void addHeader(FuzzInput& input, Values& stack) {
  stack.emplace_back(word(input));
  stack.emplace_back(static_cast<std::int64_t>(input.below(4)));
  stack.emplace_back(input.oneIn(4) ? word(input) : std::string(kForward));
  if (input.oneIn(2)) {
    stack.emplace_back();
  } else {
    c10::List<std::string> names;
    for (std::size_t i = input.below(4); i > 0; --i)
      names.push_back(word(input));
    stack.emplace_back(std::move(names));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  publishOnce();
  FuzzInput input(data, size);
  static constexpr const char* kNames[] = {kCallName, kNamedCallName, kRemoteName, kListName};
  const std::size_t which = input.below(std::size(kNames) + 1);
  const std::string name = which < std::size(kNames) ? kNames[which] : word(input);
  Values stack;
  if (name == kRemoteName && !input.oneIn(8)) stack.emplace_back(c10::List<at::Tensor>());
  if (which < 3 && !input.oneIn(8)) addHeader(input, stack);
  for (int i = 0; i < 12 && !input.empty(); ++i)
    stack.push_back(value(input));
  try {
    if (const FuturePtr result = weft::rpc::runScript(name, stack)) {
      require(result->completed());
      if (!result->hasError()) require(!result->value().isFuture());
    }
  } catch (const std::exception& error) {
    require(*error.what() != 0);
  }
  return 0;
}
