#include "jit_ops/serve/service.h"

#include <c10/util/Exception.h>

#include <set>
#include <stdexcept>

#include "jit_ops/serve/published.h"
#include "jit_ops/values/coerce.h"
#include "jit_ops/values/result_names.h"
#include "rpc_backend/serve/callback/script_service.h"

namespace weft::ops {

namespace {

std::string methodsOf(const Servable& servable) {
  std::string text;
  for (const Servable::Method& method : servable.methods())
    text += (text.empty() ? "" : "; ") + method.signature;
  return text;
}

std::string label(const std::string& name, std::int64_t version) {
  return "'" + name + "' (version " + std::to_string(version) + ")";
}

// What happens to the names of NamedTuples in a result.
enum class Names { kDropped, kBeside };

FuturePtr runFound(const Found& found, const std::string& name, const std::string& method_name,
                   Values args, std::vector<std::string> names, Names wanted) {
  const Servable::Method* method = found.servable->find(method_name);
  TORCH_CHECK(method != nullptr, label(name, found.version), " has no method '", method_name,
              "'; it has: ", methodsOf(*found.servable));
  TORCH_CHECK(names.size() <= args.size(), label(name, found.version), ": ", names.size(),
              " names for ", args.size(), " arguments");
  if (method->schema != nullptr) {
    try {
      args = bindArguments(*method->schema, std::move(args), names);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, label(name, found.version), ": ", error.what_without_backtrace());
    }
    names.clear();
  } else {
    const std::set<std::string> distinct(names.begin(), names.end());
    TORCH_CHECK(distinct.size() == names.size(), label(name, found.version),
                ": an argument is given twice by its name");
  }
  FuturePtr result = found.servable->run(*method, std::move(args), names);
  if (wanted == Names::kDropped || method->result_names.empty()) return result;
  return result->then(
      [names = method->result_names](JitFuture& done) { return besideNames(done.value(), names); },
      c10::AnyType::get());
}

// `stack` from `at` on is a call's header and arguments.
FuturePtr runCall(Values& stack, std::size_t at, Names wanted = Names::kDropped) {
  TORCH_CHECK(stack.size() >= at + kCallHeader && stack[at].isString() && stack[at + 1].isInt() &&
                  stack[at + 2].isString() && (stack[at + 3].isNone() || stack[at + 3].isList()),
              "the call is malformed; install the same Weft on all workers");
  const std::string& name = stack[at].toStringRef();
  const Found found = mustFindPublished(name, stack[at + 1].toInt());
  const auto first = stack.begin() + static_cast<std::ptrdiff_t>(at + kCallHeader);
  Values args(std::make_move_iterator(first), std::make_move_iterator(stack.end()));
  std::vector<std::string> names;
  if (!stack[at + 3].isNone()) names = stack[at + 3].to<std::vector<std::string>>();
  return runFound(found, name, stack[at + 2].toStringRef(), std::move(args), std::move(names),
                  wanted);
}

// The owner's RRef must have exactly the type of the user's RRef, because torch checks that. A
// failure becomes the RRef's value, so that a fetch fails instead of waiting for ever.
FuturePtr runRemote(Values& stack) {
  TORCH_CHECK(!stack.empty() && stack[0].isList(), "the remote call has no type");
  const c10::TypePtr type = stack[0].toList().elementType();
  try {
    const FuturePtr result = runCall(stack, 1);
    return result->then(
        [type](JitFuture& done) {
          at::IValue value = done.value();
          if (!coerce(value, type)) {
            throw std::runtime_error("the caller expects an RRef of " + type->annotation_str() +
                                     ", but the value is " + value.type()->annotation_str());
          }
          return value;
        },
        type);
  } catch (const std::exception& error) {
    auto failed = c10::make_intrusive<JitFuture>(type);
    failed->setError(std::make_exception_ptr(std::runtime_error(textOf(error))));
    return failed;
  }
}

FuturePtr listing() {
  std::vector<at::IValue> rows;
  for (const PublishedInfo& info : published()) {
    c10::List<std::string> methods;
    for (const std::string& method : info.methods)
      methods.push_back(method);
    rows.push_back(c10::ivalue::Tuple::create(info.name, info.version, std::move(methods)));
  }
  auto answer = c10::make_intrusive<JitFuture>(c10::AnyType::get());
  answer->markCompleted(c10::ivalue::Tuple::create(std::move(rows)));
  return answer;
}

class Service : public rpc::ScriptService {
 public:
  FuturePtr run(const std::string& name, Values& stack) override {
    try {
      if (name == kCallName) return runCall(stack, 0);
      if (name == kNamedCallName) return runCall(stack, 0, Names::kBeside);
      if (name == kRemoteName) return runRemote(stack);
      if (name == kListName) return listing();
      const Found found = findPublished(name, kNewest);
      if (found.servable == nullptr) return nullptr;
      return runFound(found, name, kForward, std::move(stack), {}, Names::kDropped);
    } catch (const c10::Error& error) {  // which torch would log with its frames
      throw std::runtime_error(textOf(error));
    }
  }
};

}  // namespace

void installService() {
  static auto* service = new Service;  // never destroyed: calls may come while the process exits
  rpc::addScriptService(service);
}

}  // namespace weft::ops
