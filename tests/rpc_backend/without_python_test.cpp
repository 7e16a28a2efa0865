// libweft.so in a program that has no Python: two processes form a group and call each other's
// built-in operators.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <cstdio>
#include <fstream>

#include "rpc_backend/agent/weft_agent.h"

namespace weft::rpc {
namespace {

using namespace torch::distributed::rpc;  // NOLINT(google-build-using-namespace)

std::shared_ptr<torch::jit::Operator> tensorAdd() {
  for (const auto& op : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString("aten::add"))) {
    if (op->schema().overload_name() == "Tensor") return op;
  }
  throw std::runtime_error("torch has no aten::add.Tensor");
}

at::Tensor addThere(WeftAgent& agent, const std::string& to, const at::Tensor& a,
                    const at::Tensor& b) {
  std::vector<at::IValue> stack{a, b, 1};
  auto message = ScriptCall(tensorAdd(), std::move(stack)).toMessage();
  auto future = agent.send(agent.getWorkerInfo(to), std::move(message), 20.0F, {});
  future->waitAndThrow();
  const auto answer = future->value().toCustomClass<Message>();
  MessageType type = MessageType::UNKNOWN;
  const auto response = deserializeResponse(*answer, type);
  return static_cast<ScriptResp&>(*response).value().toTensor();
}

// One worker's life; throws when anything is not as it should be.
void live(const std::string& path, worker_id_t rank) {
  WeftAgent::Config config;
  config.store = c10::make_intrusive<c10d::FileStore>(path, 2);
  config.store->setTimeout(std::chrono::seconds(20));
  config.name = "cpp" + std::to_string(rank);
  config.rank = rank;
  config.world_size = 2;
  config.options.rpcTimeoutSeconds = 20;
  auto agent = WeftAgent::create(std::move(config), std::make_unique<RequestCallbackNoPython>());
  // What torch's Python API does besides.
  torch::distributed::autograd::DistAutogradContainer::init(rank);
  agent->setTypeResolver(std::make_shared<TypeResolver>([](const c10::QualifiedName& /*name*/) {
    return c10::StrongTypePtr(nullptr, c10::TensorType::get());
  }));
  RpcAgent::setCurrentRpcAgent(agent);
  agent->start();
  const std::string other = "cpp" + std::to_string(1 - rank);
  for (int i = 0; i < 20; ++i) {
    const at::Tensor sum =
        addThere(*agent, other, at::ones({300, i}), at::full({300, i}, rank + 1));
    TORCH_CHECK(at::equal(sum, at::full({300, i}, rank + 2)), "a wrong sum");
  }
  agent->join(/*shutdown=*/true, 20);
  agent->shutdown();
  RpcAgent::setCurrentRpcAgent(nullptr);
}

TEST(WithoutPython, TwoProcessesCallEachOther) {
  const char* folder = std::getenv("TEST_TMPDIR");  // NOLINT(concurrency-mt-unsafe)
  const std::string path =
      std::string(folder == nullptr ? "/tmp" : folder) + "/store-" + std::to_string(::getpid());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(50);
    int code = 1;
    try {
      live(path, 1);
      code = 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank 1: %s\n", error.what());
    }
    ::_exit(code);
  }
  EXPECT_NO_THROW(live(path, 0));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank 1 ended with " << status;
}

TEST(WithoutPython, NoPythonIsMapped) {
  std::ifstream maps("/proc/self/maps");
  bool weft = false;
  for (std::string line; std::getline(maps, line);) {
    weft |= line.find("libweft.so") != std::string::npos;
    EXPECT_EQ(line.find("libpython"), std::string::npos) << line;
    EXPECT_EQ(line.find("libtorch_python"), std::string::npos) << line;
  }
  EXPECT_TRUE(weft);
}

}  // namespace
}  // namespace weft::rpc
