// Three processes in one group: a C++ server, a C++ client, and a Python worker (mixed_group.py)
// that is client and server of both. Calls all ways, gradients, a process group of all three,
// refusals, and the Python worker lost in the middle of a call.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>

#include "jit_ops/weft.h"
#include "tests/jit_ops/processes.h"

#include "tests/support/waiting.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using testing::expect;
using testing::expectProblem;
using testing::freshPath;
using testing::runWorkers;

constexpr int kRanks = 3;

std::shared_ptr<Group> join(const std::string& store, const std::string& name, int rank) {
  JoinOptions options;
  options.name = name;
  options.rank = rank;
  options.world_size = kRanks;
  options.init_method = "file://" + store;
  options.rpc.rpcTimeoutSeconds = 60;
  return Group::join(options);
}

void sumUp(const std::string& store, int rank) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.size = kRanks;
  options.init_method = "file://" + store + ".pg";
  options.timeout = std::chrono::seconds(60);
  joinProcessGroup(options);
  expectProblem("already", [&] { joinProcessGroup(options); });
  const at::Tensor mine = at::full({2}, 1.0 + rank).requires_grad_();
  const auto sum = [&] {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("weft::all_reduce", "")
        .typed<at::Tensor(const at::Tensor&, c10::string_view, c10::string_view)>()
        .call(mine, "sum", "0");
  };
  const at::Tensor total = sum();
  expect(at::equal(total, at::full({2}, 6.0)), "the sum of three ranks");
  total.sum().backward();
  expect(at::equal(mine.grad(), at::full({2}, 3.0)), "its gradient");
  leaveProcessGroup();
  expectProblem("no process group named '0'", [] { leaveProcessGroup(); });
  // An operator throws as torch's do, with its frames.
  std::string text;
  try {
    sum();
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  }
  expect(text.find("no process group named '0'") != std::string::npos,
         "the operator says: " + text);
}

torch::jit::Module encoder() {
  torch::jit::Module module("Encoder");
  module.register_parameter("w", at::full({2, 3}, 0.5).requires_grad_(), false);
  module.define(R"(
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
      return torch.tanh(torch.matmul(x, self.w)) * scale
    def total(self, xs: List[float]) -> float:
      return sum(xs)
    def named(self, xs: Dict[str, Tensor]) -> Tuple[Tensor, int]:
      return xs["a"], len(xs)
  )");
  return module;
}

void server(const std::string& store) {
  publish("encoder", encoder());
  std::atomic<bool> done{false};
  publish("done", servable("done() -> int", [&](Values) {
            done = true;
            return at::IValue(1);
          }));
  const auto group = join(store, "server", 0);
  sumUp(store, 0);
  const auto ended = [&] { return done.load(); };
  expect(waitUntil(ended, std::chrono::seconds(80)), "the client did not come to its end");
  group->shutdown(30);
}

// Until the Python worker has asked what it wanted.
void waitForPython() {
  const auto asked = [] {
    for (const PublishedInfo& info : publishedBy("python"))
      if (info.name == "asked") return true;
    return false;
  };
  expect(waitUntil(asked, std::chrono::seconds(60), std::chrono::milliseconds(20)),
         "the Python worker did not come to its end");
}

void callPython(const std::string& name) {
  torch::jit::Module local = encoder();
  const at::Tensor x = at::arange(4).reshape({2, 2}).to(at::kFloat).div(7).requires_grad_();
  const at::Tensor here = x.detach().clone().requires_grad_();
  local.forward({here}).toTensor().square().sum().backward();
  AutogradContext context;
  const auto y = rpcSync<at::Tensor>("python", name, {x});
  context.backward({y.square().sum()});
  expect(at::equal(context.gradient(x), here.grad()), name + ": the input's gradient");
  RRef kept = remote("python", name, {x.detach(), 2.0}, {}, c10::TensorType::get());
  expect(at::equal(kept.toHere().toTensor(), local.forward({here, 2.0}).toTensor()),
         name + ": kept");
  expectProblem("no.such", [&] { rpcSync("python", "no.such", {x}); });
  expectProblem("python", [&] { rpcSync("python", name, {"text"}); });
}

void client(const std::string& store) {
  const auto group = join(store, "client", 1);
  sumUp(store, 1);
  expect(rpcSync("server", "encoder", {at::ones({1, 2})}).isTensor(), "C++ to C++");
  callPython("scorer");
  callPython("plain");
  waitForPython();
  expect(!group->lossOf("python"), "the Python worker is lived with");
  const auto begun = std::chrono::steady_clock::now();
  std::string text;
  try {
    rpcSync("python", "die", {});
  } catch (const std::exception& error) {
    text = error.what();
  }
  expect(text.find("die.forward at worker 'python'") != std::string::npos,
         "the call says: " + text);
  expect(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30), "at once");
  // A message that could not be delivered fails its call a moment before the peer is declared lost.
  const auto lost = [&] { return group->lossOf("python").has_value(); };
  expect(waitUntil(lost, std::chrono::seconds(40)), "the loss is not known after: " + text);
  expectProblem("python", [] { rpcSync("python", "scorer", {at::ones({1, 2})}); });
  rpcSync("server", "done", {});
  group->shutdown(30);
}

// The interpreter beside the torch that this program is linked with.
fs::path interpreter() {
  Dl_info info{};
  expect(::dladdr(reinterpret_cast<void*>(&at::globalContext), &info) != 0, "where is torch?");
  const fs::path site = fs::canonical(info.dli_fname).parent_path().parent_path().parent_path();
  return site / "../../../bin/python";
}

[[noreturn]] void python(const std::string& store) {
  // An importable package: the checkout's files with the shared objects built for this test.
  const fs::path root = fs::current_path();
  const fs::path site = store + ".site";
  fs::create_directories(site / "weft");
  for (const auto& entry : fs::directory_iterator(root / "weft"))
    if (entry.path().extension() == ".py" || entry.is_directory())
      fs::create_symlink(entry.path(), site / "weft" / entry.path().filename());
  for (const char* object : {"_C.so", "libweft.so"})
    fs::create_symlink(root / object, site / "weft" / object);
  ::setenv("PYTHONPATH", site.c_str(), 1);
  ::setenv("PYTHONSAFEPATH", "1", 1);
  ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  ::setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0", 1);
  ::setenv("RANK", "2", 1);
  const std::string program = interpreter();
  const std::string script = root / "tests/jit_ops/mixed_group.py";
  ::execl(program.c_str(), program.c_str(), script.c_str(), store.c_str(), nullptr);
  throw std::runtime_error("cannot run " + program);
}

TEST(MixedGroup, TwoInCppAndOneInPython) {
  const std::string store = freshPath("store");
  EXPECT_EQ(
      std::vector<std::string>(),
      runWorkers({[&] { server(store); }, [&] { client(store); }, [&] { python(store); }}, {2}));
}

}  // namespace
}  // namespace weft
