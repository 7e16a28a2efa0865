#include "pipe/workers/deliveries.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/rpc/script_call.h>

#include <iterator>
#include <string_view>

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/serve/callback/script_service.h"
#include "rpc_backend/serve/quick_call.h"

namespace weft::pipe {

namespace trpc = torch::distributed::rpc;

static_assert(std::string_view(kDeliver).starts_with(rpc::kQuick));
static_assert(std::string_view(kAlive).starts_with(rpc::kQuick));

namespace {

using Values = std::vector<at::IValue>;
using Answer = c10::ivalue::Future;
using FuturePtr = c10::intrusive_ptr<Answer>;

constexpr std::size_t kHeader = 6;  // the values before the tensors

// `sender` says it: others may reach the worker.
std::string notArrived(const std::string& sender, const std::string& worker, const ArrivalKey& key,
                       const Answer& answer) {
  const bool skips = key.what == Sent::kSkip || key.what == Sent::kSkipGradient;
  const char* what = skips                     ? "' sent along skip connection "
                     : key.what == Sent::kSums ? "' sent as sums of gradients to stage "
                                               : "' sent to stage ";
  return "what worker '" + sender + what + std::to_string(key.stage) + " of the Pipe, on worker '" +
         worker + "', did not arrive: " + answer.tryRetrieveErrorMessage();
}

Values toStack(const std::string& pipeline, const ArrivalKey& key, Parcel parcel) {
  Values stack;
  stack.reserve(kHeader + parcel.tensors.size());
  stack.emplace_back(pipeline);
  stack.emplace_back(key.mini_batch);
  stack.emplace_back(static_cast<std::int64_t>(key.what));
  stack.emplace_back(key.stage);
  stack.emplace_back(key.micro_batch);
  stack.emplace_back(std::move(parcel.layout));
  for (at::Tensor& tensor : parcel.tensors)
    stack.emplace_back(std::move(tensor));
  return stack;
}

bool isDelivery(const Values& stack) {
  if (stack.size() < kHeader || !stack[0].isString() || !stack[5].isString()) return false;
  for (std::size_t at = 1; at < 5; ++at) {
    if (!stack[at].isInt() || stack[at].toInt() < 0) return false;
  }
  for (std::size_t at = kHeader; at < stack.size(); ++at) {
    if (!stack[at].isTensor()) return false;
  }
  return stack[2].toInt() <= static_cast<std::int64_t>(Sent::kSums);
}

// The mini-batch runs on other streams than this call: what it takes is there.
void synchronize(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) return;
  c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()).synchronize();
}

void deliver(Values& stack) {
  TORCH_CHECK(isDelivery(stack), "the delivery is malformed; install the same Weft on all workers");
  const std::string& pipeline = stack[0].toStringRef();
  const auto arrivals = findArrivals(pipeline);
  TORCH_CHECK(arrivals != nullptr,
              noStageAt(trpc::RpcAgent::getCurrentRpcAgent()->getWorkerInfo().name_));
  const ArrivalKey key{stack[1].toInt(), static_cast<Sent>(stack[2].toInt()), stack[3].toInt(),
                       stack[4].toInt()};
  Parcel parcel{stack[5].toStringRef(), {}};
  for (auto value = stack.begin() + kHeader; value != stack.end(); ++value) {
    synchronize(value->toTensor());
    parcel.tensors.push_back(std::move(*value).toTensor());
  }
  arrivals->put(key, std::move(parcel));
}

class Service final : public rpc::ScriptService {
 public:
  FuturePtr run(const std::string& name, Values& stack) override {
    if (name != kDeliver && name != kAlive) return nullptr;
    try {
      if (name == kDeliver) deliver(stack);
    } catch (const c10::Error& error) {
      throw std::runtime_error(error.what_without_backtrace());
    }
    auto done = c10::make_intrusive<Future>(c10::NoneType::get());
    done->markCompleted();
    return done;
  }
};

[[maybe_unused]] const bool g_installed = [] {
  static auto* service = new Service;  // never destroyed: calls may come while the process exits
  rpc::addScriptService(service);
  return true;
}();

}  // namespace

void ping(const std::string& worker) {
  constexpr float kNoTimeout = 0;
  const auto agent = trpc::RpcAgent::getCurrentRpcAgent();
  trpc::ScriptCall call(c10::QualifiedName(kAlive), {});
  const auto answer =
      agent->send(agent->getWorkerInfo(worker), std::move(call).toMessage(), kNoTimeout);
  rpc::awaitInterruptibly(*answer);
  if (answer->hasError()) throw std::runtime_error(answer->tryRetrieveErrorMessage());
}

void Deliveries::send(const std::string& worker, const ArrivalKey& key, Parcel parcel) {
  static const c10::QualifiedName name(kDeliver);
  const auto agent = rpc::WeftAgent::current();
  TORCH_CHECK(agent != nullptr, "a Pipe over workers needs init_rpc with the backend WEFT");
  if (self_.empty()) self_ = agent->getWorkerInfo().name_;
  trpc::ScriptCall call(name, toStack(pipeline_, key, std::move(parcel)));
  auto answer = agent->sendQuick(agent->getWorkerInfo(worker), std::move(call).toMessage());
  // If it fails, ends the mini-batch here, whose next tasks may wait for what that worker was to
  // send.
  answer->addCallback(
      [pipeline = pipeline_, key, worker, self = self_](Answer& done) {
        if (!done.hasError()) return;
        if (const auto here = findArrivals(pipeline))
          here->end(key.mini_batch, notArrived(self, worker, key, done));
      },
      /*uses_future=*/false);
  sent_.push_back({worker, key, std::move(answer)});
}

void Deliveries::wait() {
  for (const Sending& sending : std::exchange(sent_, {})) {
    rpc::awaitInterruptibly(*sending.answer);
    if (!sending.answer->hasError()) continue;
    throw std::runtime_error(notArrived(self_, sending.worker, sending.key, *sending.answer));
  }
}

}  // namespace weft::pipe
