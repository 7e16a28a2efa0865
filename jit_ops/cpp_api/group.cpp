// weft::Group: joining and leaving, as torch.distributed.rpc does it in Python (api.py, 2.11).
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/cuda.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "jit_ops/cpp_api/rendezvous.h"
#include "jit_ops/serve/plain_errors.h"
#include "jit_ops/weft.h"
#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/serve/callback/script_service.h"

namespace weft {

namespace trpc = torch::distributed::rpc;

namespace {

constexpr std::chrono::milliseconds kStopPoll{50};
constexpr std::chrono::seconds kRRefWait{100};  // upstream's

// The types that come with containers and RRefs: "List[str]", "Tensor". Classes would need their
// code, which only Python has.
c10::StrongTypePtr resolveType(const c10::QualifiedName& name) {
  try {
    return {nullptr, torch::jit::ScriptTypeParser().parseType(name.qualifiedName())};
  } catch (const std::exception&) {
    throw std::runtime_error(
        "a value of type " + name.qualifiedName() +
        " cannot be read: a process without Python knows TorchScript's own types only");
  }
}

constexpr rpc::RequestPolicy kPolicy = rpc::RequestPolicy::kScript;

rpc::WeftAgent::Config toConfig(JoinOptions options) {
  rpc::WeftAgent::Config config;
  config.name = std::move(options.name);
  config.rank = options.rank;
  config.world_size = options.world_size;
  config.device_count = static_cast<int>(torch::cuda::device_count());
  config.options = std::move(options.rpc);
  config.options.request_policy = kPolicy;
  config.store = options.store;
  return config;
}

}  // namespace

std::shared_ptr<Group> Group::join(JoinOptions options) try {
  TORCH_CHECK(!trpc::RpcAgent::isCurrentRpcAgentSet(),
              "this process is in an RPC group already; shut that down first");
  TORCH_CHECK(!options.name.empty(), "JoinOptions::name must not be empty");
  options.rpc.check();
  ops::fillFromEnvironment(options, /*may_be_dynamic=*/true);
  if (!options.store) options.store = ops::openStore(options);
  options.store->setTimeout(ops::storeTimeout(options));
  // Each group of a process has its own keys, counted as init_rpc counts: those that were joined.
  static std::atomic<int> groups{0};
  options.store =
      c10::make_intrusive<c10d::PrefixStore>("rpc_prefix_" + std::to_string(groups), options.store);

  std::shared_ptr<Group> group(new Group(options.name, options.rank));
  // Before anybody can call: gradients may come with the first request.
  torch::distributed::autograd::DistAutogradContainer::init(options.rank);
  auto agent = rpc::WeftAgent::create(
      toConfig(std::move(options)),
      std::make_unique<rpc::ServesScripts<trpc::RequestCallbackNoPython>>(kPolicy));
  agent->setTypeResolver(std::make_shared<trpc::TypeResolver>(&resolveType));
  trpc::RpcAgent::setCurrentRpcAgent(agent);
  group->agent_ = agent;
  agent->start();
  ++groups;
  return group;
} catch (const c10::Error& error) {
  ops::throwWithoutStack(error);
}

Group::~Group() {
  if (const auto agent = beginToLeave()) finish(*agent, /*ignore_leaks=*/true);
}

std::shared_ptr<rpc::WeftAgent> Group::agent() const {
  const std::lock_guard lock(mutex_);
  return agent_;
}

std::vector<std::string> Group::workers() const {
  std::vector<std::string> names;
  const auto agent = this->agent();
  if (!agent) return names;
  for (const auto& info : agent->getWorkerInfos())
    names.push_back(info.name_);
  return names;
}

std::optional<std::string> Group::lossOf(const std::string& worker) const try {
  const auto agent = this->agent();
  if (!agent) return std::nullopt;
  return agent->lossOf(agent->getWorkerInfo(worker).id_);
} catch (const c10::Error& error) {
  ops::throwWithoutStack(error);
}

std::unordered_map<std::string, std::string> Group::metrics() const {
  const auto agent = this->agent();
  if (!agent) return {};
  return agent->getMetrics();
}

void Group::serve() {
  while (!stop_.load())
    std::this_thread::sleep_for(kStopPoll);  // a signal handler can't wake a condition variable
}

std::shared_ptr<rpc::WeftAgent> Group::beginToLeave() {
  std::unique_lock lock(mutex_);
  if (leaving_) left_.wait(lock, [this] { return !agent_; });
  leaving_ = true;
  return agent_;
}

void Group::shutdown(double timeout) try {
  const auto agent = beginToLeave();
  if (!agent) return;
  const auto seconds = static_cast<float>(timeout);
  try {
    if (agent->isStaticGroup()) agent->barrier(seconds);
    agent->rrefs().failUnfinished();
    trpc::RRefContext::getInstance().delAllUsersAndUnforkedOwners(kRRefWait);
    agent->join(/*shutdown=*/true, seconds);
  } catch (...) {
    finish(*agent, /*ignore_leaks=*/true);
    throw;
  }
  finish(*agent, /*ignore_leaks=*/false);
} catch (const c10::Error& error) {
  ops::throwWithoutStack(error);
}

void Group::finish(rpc::WeftAgent& agent, bool ignore_leaks) noexcept {
  try {
    agent.rrefs().warnAboutLeaks(ignore_leaks);
    // Values are freed when this goes, after torch's lock.
    const auto values = trpc::RRefContext::destroyInstance(/*ignoreRRefLeak=*/true);
    agent.shutdown();
  } catch (const std::exception& error) {
    rpc::logWarning(std::string("leaving the group failed: ") + error.what());
  }
  trpc::RpcAgent::setCurrentRpcAgent(nullptr);
  const std::lock_guard lock(mutex_);
  agent_.reset();  // not its end: the caller has it, too
  left_.notify_all();
}

}  // namespace weft
