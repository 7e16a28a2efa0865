#include "jit_ops/serve/batched.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "jit_ops/serve/plain_errors.h"
#include "rpc_backend/core/call_context.h"

namespace weft::ops {

namespace {

constexpr std::chrono::hours kLongestDelay{1};

// Whether the arguments can be concatenated with others. Quantised tensors have their own scale,
// and other layouts have no rows in memory.
bool canShare(const Values& args) {
  return std::all_of(args.begin(), args.end(), [](const at::IValue& arg) {
    const at::Tensor& tensor = arg.toTensor();
    return tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_nested();
  });
}

// What must be equal for requests to share a run: per argument, the dtype, the device and all sizes
// except the first.
using Key = std::vector<std::int64_t>;

Key keyOf(const Values& args) {
  Key key;
  for (const at::IValue& arg : args) {
    const at::Tensor& tensor = arg.toTensor();
    key.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
    key.push_back(static_cast<std::int64_t>(tensor.device().type()) << 8 | tensor.device().index());
    key.push_back(tensor.dim());
    const auto rest = tensor.sizes().slice(1);
    key.insert(key.end(), rest.begin(), rest.end());
  }
  return key;
}

struct Request {
  FuturePtr args;  // completed with a tuple
  std::int64_t rows = 0;
  FuturePtr answer;
  std::shared_ptr<const rpc::CallContext> call;  // null: one without an end
};

std::shared_ptr<const rpc::CallContext> currentCall() {
  const rpc::CallContext* const call = rpc::CallContext::current();
  return call == nullptr ? nullptr : call->weak_from_this().lock();
}

// A future that knows the devices, because the thread that runs a batch has other streams than the
// calls.
FuturePtr futureOnDevices(c10::TypePtr type) {
  using torch::distributed::rpc::RpcAgent;
  const bool in_group = RpcAgent::isCurrentRpcAgentSet();
  return c10::make_intrusive<JitFuture>(
      std::move(type),
      in_group ? RpcAgent::getCurrentRpcAgent()->getDevices() : std::vector<c10::Device>());
}

// The rows [from, from + rows) of a result.
at::IValue slice(const at::IValue& result, std::int64_t from, std::int64_t rows) {
  if (result.isTensor()) return result.toTensor().narrow(0, from, rows);
  std::vector<at::IValue> parts;
  for (const at::IValue& element : result.toTupleRef().elements())
    parts.push_back(slice(element, from, rows));
  return c10::ivalue::Tuple::create(std::move(parts));
}

void checkRows(const at::IValue& result, std::int64_t rows) {
  if (result.isTuple()) {
    for (const at::IValue& element : result.toTupleRef().elements())
      checkRows(element, rows);
    return;
  }
  TORCH_CHECK(result.isTensor() && result.toTensor().dim() > 0 && result.toTensor().size(0) == rows,
              "a batched module must return a row for each row it gets, as a tensor or a tuple of "
              "tensors; for ",
              rows, rows == 1 ? " row it returned " : " rows it returned ",
              result.isTensor() ? c10::str("a tensor of sizes ", result.toTensor().sizes())
                                : result.type()->annotation_str());
}

class Batched : public Servable {
 public:
  Batched(std::shared_ptr<Servable> inner, BatchOptions options)
      : inner_(std::move(inner)), method_(inner_->find(kForward)), options_(options) {
    TORCH_CHECK(method_ != nullptr && method_->schema != nullptr,
                "only a module with a scripted method forward can be batched");
    TORCH_CHECK(options_.max_requests > 0, "max_requests must be positive, got ",
                options_.max_requests);
    TORCH_CHECK(options_.max_delay.count() >= 0 && options_.max_delay <= kLongestDelay,
                "max_delay must be at least 0 and at most an hour, got ",
                options_.max_delay.count(), " us");
    for (const c10::Argument& argument : method_->schema->arguments()) {
      TORCH_CHECK(argument.type()->kind() == c10::TypeKind::TensorType,
                  "only tensors can be batched; ", *method_->schema, " takes '", argument.name(),
                  "' of type ", argument.type()->annotation_str());
    }
    TORCH_CHECK(!method_->schema->arguments().empty(), *method_->schema, " takes nothing to batch");
    add(*method_->schema);
  }

  FuturePtr run(const Method& method, Values args,
                const std::vector<std::string>& /*names*/) override {
    Request request{futureOnDevices(c10::AnyType::get()), rowsOf(args),
                    futureOnDevices(method.returns), currentCall()};
    const FuturePtr answer = request.answer;
    std::vector<Request> ready;
    const bool alone = !canShare(args);
    const Key key = alone ? Key() : keyOf(args);
    request.args->markCompleted(c10::ivalue::Tuple::create(std::move(args)));
    if (alone) {
      ready.push_back(std::move(request));
    } else {
      std::unique_lock lock(mutex_);
      std::shared_ptr<Batch>& open = open_[key];
      const bool first = open == nullptr;
      if (first) open = std::make_shared<Batch>();
      const std::shared_ptr<Batch> mine = open;
      mine->requests.push_back(std::move(request));
      if (mine->requests.size() >= options_.max_requests) {
        ready = take(key, *mine);
        mine->taken.notify_one();
      } else if (first) {
        mine->taken.wait_for(lock, options_.max_delay, [&] { return mine->closed; });
        if (!mine->closed) ready = take(key, *mine);
      }
    }
    if (!ready.empty()) runAll(std::move(ready));
    return answer;
  }

 private:
  struct Batch {
    std::vector<Request> requests;
    std::condition_variable taken;
    bool closed = false;  // somebody runs it
  };

  static std::int64_t rowsOf(const Values& args) {
    std::int64_t rows = -1;
    for (const at::IValue& arg : args) {
      const at::Tensor& tensor = arg.toTensor();
      TORCH_CHECK(tensor.dim() > 0,
                  "a batched call takes tensors with a dimension for rows, got a "
                  "scalar");
      TORCH_CHECK(rows < 0 || tensor.size(0) == rows,
                  "the tensors of a batched call must have equally many rows, got ", rows, " and ",
                  tensor.size(0));
      rows = tensor.size(0);
    }
    return rows;
  }

  // With the lock held.
  std::vector<Request> take(const Key& key, Batch& batch) {
    batch.closed = true;
    open_.erase(key);
    return std::move(batch.requests);
  }

  // Each caller gets its answer, or the error of a run of its own.
  void runAll(std::vector<Request> requests) {
    try {
      runTogether(requests);
    } catch (const std::exception& error) {
      if (requests.size() == 1) {
        requests[0].answer->setErrorIfNeeded(
            std::make_exception_ptr(std::runtime_error(textOf(error))));
        return;
      }
      for (Request& request : requests) {
        if (!request.answer->completed()) runAll({std::move(request)});
      }
    }
  }

  void runTogether(const std::vector<Request>& requests) {
    std::vector<std::shared_ptr<const rpc::CallContext>> calls;
    std::int64_t rows = 0;
    for (const Request& request : requests) {
      calls.push_back(request.call);
      rows += request.rows;
      request.args->wait();  // makes the streams here wait for those of the call
    }
    const rpc::CallContext all_calls(std::move(calls));
    const rpc::CallScope scope(&all_calls);
    const at::NoGradGuard no_grad;
    const FuturePtr all = inner_->run(*method_, joined(requests), {});
    all->waitAndThrow();
    const at::IValue result = all->value();
    checkRows(result, rows);
    if (requests.size() == 1) return requests[0].answer->markCompleted(result);
    std::int64_t from = 0;
    for (const Request& request : requests) {
      request.answer->markCompleted(slice(result, from, request.rows));
      from += request.rows;
    }
  }

  // The arguments of one run for all requests.
  Values joined(const std::vector<Request>& requests) const {
    Values args;
    for (std::size_t i = 0; i < method_->schema->arguments().size(); ++i) {
      std::vector<at::Tensor> parts;
      for (const Request& request : requests)
        parts.push_back(request.args->constValue().toTupleRef().elements()[i].toTensor());
      args.emplace_back(parts.size() == 1 ? parts.front() : at::cat(parts));
    }
    return args;
  }

  const std::shared_ptr<Servable> inner_;
  const Method* const method_;
  const BatchOptions options_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Batch>> open_;
};

}  // namespace

std::shared_ptr<Servable> batched(std::shared_ptr<Servable> inner, BatchOptions options) try {
  return std::make_shared<Batched>(std::move(inner), options);
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

}  // namespace weft::ops
