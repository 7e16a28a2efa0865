// weft.h in real processes without Python: joining, calls, references, gradients, refusals, loss.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <future>
#include <stdexcept>
#include <thread>

#include "jit_ops/weft.h"
#include "tests/jit_ops/processes.h"

#include "tests/support/waiting.h"

namespace weft {
namespace {

using testing::expect;
using testing::expectProblem;
using testing::freePort;
using testing::freshPath;
using testing::runWorkers;

JoinOptions options(const std::string& path, const std::string& name, int rank, int world) {
  JoinOptions out;
  out.name = name;
  out.rank = rank;
  out.world_size = world;
  out.init_method = "file://" + path;
  out.rpc.rpcTimeoutSeconds = 30;
  return out;
}

torch::jit::Module encoder() {
  torch::jit::Module module("Encoder");
  module.register_parameter("w", at::full({2, 3}, 0.5).requires_grad_(), false);
  module.define(R"(
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
      return torch.tanh(torch.matmul(x, self.w)) * scale
    def stats(self, xs: List[float]) -> Tuple[float, Optional[Tensor]]:
      total = 0.0
      for x in xs:
        total += x
      return total, None
    def slow(self, x: Tensor, rounds: int) -> Tensor:
      for _ in range(rounds):
        x = torch.matmul(x, x) * 0.0
      return x
    def twice(self, other: RRef[Tensor]) -> str:
      return "got an RRef"
  )");
  return module;
}

// Server and client each in a process; the client's checks are `body`.
std::vector<std::string> withServer(const std::function<void(Group&)>& body) {
  const std::string path = freshPath("store");
  const auto server = [&] {
    publish("encoder", encoder());
    auto group = Group::join(options(path, "server", 0, 2));
    group->shutdown(60);
  };
  const auto client = [&] {
    auto group = Group::join(options(path, "client", 1, 2));
    body(*group);
    group->shutdown(60);
  };
  return runWorkers({server, client});
}

const std::vector<std::string> kFine;

TEST(Client, CallsWhatIsPublished) {
  EXPECT_EQ(
      kFine, withServer([](Group& group) {
        expect(group.workers() == std::vector<std::string>{"server", "client"}, "workers");
        const at::Tensor x = at::ones({4, 2});
        const at::Tensor right = at::tanh(at::full({4, 3}, 1.0));
        expect(at::equal(rpcSync<at::Tensor>("server", "encoder", {x}), right), "forward");
        expect(at::equal(rpcSync<at::Tensor>("server", "encoder", {x, 2}), right * 2),
               "an int for a float");
        expect(at::equal(rpcSync<at::Tensor>("server", "encoder", {x, 3.0}, {.names = {"scale"}}),
                         right * 3),
               "by name");
        const auto stats =
            rpcSync("server", "encoder", {c10::List<std::int64_t>({1, 2})}, {.method = "stats"});
        expect(stats.toTupleRef().elements()[0].toDouble() == 3.0, "a tuple");
        std::vector<Future> futures;
        for (int i = 0; i < 200; ++i)
          futures.push_back(rpcAsync("server", "encoder", {at::full({1, 2}, 1.0 * i)}));
        for (int i = 0; i < 200; ++i) {
          expect(at::allclose(wait(futures[i]).toTensor(), at::tanh(at::full({1, 3}, 1.0 * i))),
                 "many at once");
        }
        const auto infos = publishedBy("server");
        expect(infos.size() == 1 && infos[0].name == "encoder" && infos[0].version == 1 &&
                   infos[0].methods[0] == "forward(Tensor x, float scale=1.) -> Tensor",
               "list");
      }));
}

TEST(Client, CallsBuiltInOperators) {
  EXPECT_EQ(kFine, withServer([](Group&) {
              const at::Tensor a = at::ones({3});
              expect(at::equal(rpcSync<at::Tensor>("server", "aten::add", {a, a}), a + a), "add");
              expect(at::equal(rpcSync<at::Tensor>("server", "aten::mul.Scalar", {a, 4}), a * 4),
                     "an overload by name");
              expectProblem("no operator aten::addd",
                            [&] { rpcSync("server", "aten::addd", {a}); });
            }));
}

TEST(Client, OperatorsTakeArgumentsAsInPython) {
  EXPECT_EQ(
      kFine, withServer([](Group&) {
        const at::Tensor x = at::arange(6, at::kFloat).reshape({2, 3});
        const auto ask = [](const char* op, Values args, std::vector<std::string> names = {}) {
          return rpcSync<at::Tensor>("server", op, std::move(args), {.names = std::move(names)});
        };
        expect(at::equal(ask("aten::sum", {x, 1}), x.sum(1)), "one dimension");
        expect(at::equal(ask("aten::clamp", {x, 4}, {"max"}), x.clamp_max(4)), "by name");
        expect(at::equal(ask("aten::add.Tensor", {x, x, 2}, {"alpha"}), x + x * 2),
               "a keyword-only argument");
        expect(rpcSync("server", "aten::add", {1, 2.5}).isDouble(), "no complex number");
        expectProblem("no operator aten::add that takes these 2 arguments", [&] {
          ask("aten::add", {x, 4}, {"max"});
        });
        expectProblem("has 2 results, and torch's RPC sends one", [&] {
          ask("aten::max", {x, 1});
        });
        expectProblem("aten::sum has no methods and no versions",
                      [&] { rpcSync("server", "aten::sum", {x}, {.method = "twice"}); });
        expectProblem("aten::sum has no methods and no versions",
                      [&] { rpcSync("server", "aten::sum", {x}, {.version = 2}); });
      }));
}

TEST(Client, ResultsAreOfTheTypeThatIsNamed) {
  EXPECT_EQ(
      kFine, withServer([](Group&) {
        const at::Tensor x = at::ones({1, 2});
        expectProblem(
            "the result must be float, got Tensor (calling encoder.forward at worker "
            "'server')",
            [&] { rpcSync<double>("server", "encoder", {x}); });
        expectProblem("the result must be int, got Tensor (calling aten::neg at worker 'server')",
                      [&] { rpcSync<int>("server", "aten::neg", {x}); });
        expect(rpcSync<double>("server", "aten::add", {1, 2}) == 3.0, "an int as a double");
        expect(rpcSync<float>("server", "aten::add", {1, 2}) == 3.0F, "and as a float");
        expect(rpcSync<int>("server", "aten::add", {1, 2}) == 3, "an int");
        using Stats = std::tuple<double, std::optional<at::Tensor>>;
        const c10::List<std::int64_t> list({1, 2});
        const CallOptions stats{.method = "stats"};
        expect(std::get<0>(rpcSync<Stats>("server", "encoder", {list}, stats)) == 3.0, "a tuple");
        using Tuple = c10::intrusive_ptr<c10::ivalue::Tuple>;
        expect(rpcSync<Tuple>("server", "encoder", {list}, stats)->size() == 2,
               "a tuple of whatever there is");
      }));
}

TEST(Client, KeepsValuesThere) {
  EXPECT_EQ(kFine, withServer([](Group&) {
              const at::Tensor x = at::ones({1, 2});
              RRef rref = remote("server", "encoder", {x}, {}, c10::TensorType::get());
              expect(rref.owner() == "server", "owner");
              const at::Tensor right = at::tanh(at::full({1, 3}, 1.0));
              expect(at::equal(rref.toHere().toTensor(), right), "toHere");
              expect(at::equal(wait(rref.toHereAsync()).toTensor(), right), "toHereAsync");
              // Back to its owner, as an argument.
              const auto text = rpcSync("server", "encoder", {rref.toValue()}, {.method = "twice"});
              expect(text.toStringRef() == "got an RRef", "an RRef as argument");
              RRef here = remote("client", "own", {}, {}, nullptr);
              expectProblem("'own' is not published here", [&] { here.toHere(); });
              rref.drop();
              expectProblem("", [&] { rref.toHere(5); });
            }));
}

TEST(Client, WhatRunsForAnotherMayAskAboutItsCall) {
  const std::string path = freshPath("store");
  const auto server = [&] {
    std::atomic<bool> ended{false};
    publish("left", servable("left() -> float?", [](Values) { return at::IValue(deadline()); }));
    publish("until_cancelled", servable("until_cancelled() -> bool", [&](Values) {
              ended = waitUntil(cancelled, std::chrono::seconds(30));
              return at::IValue(ended.load());
            }));
    publish("ended", servable("ended() -> bool", [&](Values) { return at::IValue(ended.load()); }));
    auto group = Group::join(options(path, "server", 0, 2));
    expect(!deadline() && !cancelled(), "there is no call");
    group->shutdown(60);
  };
  const auto client = [&] {
    auto group = Group::join(options(path, "client", 1, 2));
    const double left = rpcSync<double>("server", "left", {}, {.timeout = 20});
    expect(left > 0 && left <= 20.001, "the time that is left");
    expect(rpcSync("server", "left", {}, {.timeout = 0}).isNone(), "no timeout, no deadline");
    const Future late = rpcAsync("server", "until_cancelled", {}, {.timeout = 0.2});
    const auto ended = [] { return rpcSync<bool>("server", "ended", {}); };
    expect(waitUntil(ended, std::chrono::seconds(30)), "the callee hears that nobody waits");
    group->shutdown(60);
  };
  EXPECT_EQ(kFine, runWorkers({server, client}));
}

TEST(Client, SaysWhatIsWrong) {
  EXPECT_EQ(kFine, withServer([](Group& group) {
              const at::Tensor x = at::ones({1, 2});
              expectProblem("'decoder' is not published here; published are: encoder version 1",
                            [&] { rpcSync("server", "decoder", {x}); });
              expectProblem("calling decoder.forward at worker 'server'",
                            [&] { rpcSync("server", "decoder", {x}); });
              expectProblem("'encoder' version 9 is not published",
                            [&] { rpcSync("server", "encoder", {x}, {.version = 9}); });
              expectProblem("has no method 'decode'; it has: forward(",
                            [&] { rpcSync("server", "encoder", {x}, {.method = "decode"}); });
              expectProblem("argument 'x' must be Tensor, got str",
                            [&] { rpcSync("server", "encoder", {"text"}); });
              expectProblem("argument 'x' is missing", [&] { rpcSync("server", "encoder", {}); });
              // A wrong dtype is the module's to refuse: in torch's words.
              expectProblem("dtype", [&] {
                rpcSync("server", "encoder", {at::ones({1, 2}, at::kLong)});
              });
              expectProblem("could not find destination worker 'nobody'",
                            [&] { rpcSync("nobody", "encoder", {x}); });
              expectProblem("RPCErr", [&] {
                rpcSync("server", "encoder", {at::ones({600, 600}), 2000},
                        {.method = "slow", .timeout = 0.05});
              });
              for (const double no_time : {std::nan(""), -3.0}) {
                expectProblem("timeout must be a number of seconds that is not negative",
                              [&] { rpcSync("server", "encoder", {x}, {.timeout = no_time}); });
              }
              expectProblem("must be float, got", [&] {
                ops::call({.worker = "server", .name = "encoder", .args = {x}},
                          c10::FloatType::get());
              });
              expectProblem("in an RPC group already",
                            [&] { Group::join(options(freshPath("x"), "again", 0, 1)); });
              expect(!group.lossOf("server"), "the server is lived with");
            }));
}

TEST(Client, NoGroupNoCall) {
  EXPECT_EQ(kFine, runWorkers({[] {
              expectProblem("in no RPC group", [] { rpcSync("server", "encoder", {}); });
              expectProblem("init_method must begin with", [] {
                JoinOptions bad;
                bad.name = "a";
                bad.rank = 0;
                bad.init_method = "http://x";
                Group::join(bad);
              });
              expectProblem("the master's port must be a number from 0 to 65535, got '70000'", [] {
                JoinOptions bad = options("", "a", 0, 1);
                bad.init_method = "tcp://127.0.0.1:70000";
                Group::join(bad);
              });
              expectProblem("world_size must be positive, got -3",
                            [] { Group::join(options(freshPath("x"), "a", 0, -3)); });
              expectProblem("rank 2 is out of range for world_size 2",
                            [] { Group::join(options(freshPath("x"), "a", 2, 2)); });
              expectProblem("reconnect_timeout (5 s) must be at most peer_timeout (3 s)", [] {
                JoinOptions bad = options(freshPath("x"), "a", 0, 1);
                bad.rpc.peer_timeout = 3;
                Group::join(bad);
              });
              expectProblem("'a b' cannot be a published name", [] { publish("a b", encoder()); });
              expectProblem("'a' is not published here", [] { ops::unpublish("a"); });
              expectProblem("expected an RRef", [] { RRef::from(at::IValue(1)); });
              expectProblem("autograd", [] { AutogradContext context; });
            }}));
}

TEST(Client, ErrorsOfGroupsKeepTheirTypeAndLoseTheirFrames) {
  EXPECT_EQ(kFine, withServer([](Group& group) {
              expectProblem("nobody", [&] { group.lossOf("nobody"); });
              try {
                rpcSync("server", "encoder", {at::ones({1, 2})}, {.timeout = -3});
              } catch (const c10::ValueError&) {
                return;
              }
              throw std::runtime_error("no ValueError came");
            }));
  EXPECT_EQ(kFine, runWorkers({[] {
              ProcessGroupOptions lonely;
              lonely.rank = 0;
              lonely.size = 2;
              lonely.init_method = "file://" + freshPath("pg");
              lonely.timeout = std::chrono::milliseconds(200);
              expectProblem("the default process group of size 2",
                            [&] { joinProcessGroup(lonely); });
              lonely.size = -1;
              expectProblem("has no size", [&] { joinProcessGroup(lonely); });
            }}));
}

TEST(Client, GradientsAreThoseOfTheLocalModule) {
  const std::string path = freshPath("store");
  const auto learner = [&] {
    torch::jit::Module module = encoder();
    at::Tensor gradient;
    publish("encoder", module);
    // The gradient of the parameter lies in this worker's context, which the caller names.
    ops::publish(
        "gradient", servable("gradient(int context) -> Tensor", [&](Values args) {
          const auto context =
              torch::distributed::autograd::DistAutogradContainer::getInstance().retrieveContext(
                  args[0].toInt());
          return at::IValue(context->getGradients().at(module.attr("w").toTensor()));
        }));
    auto group = Group::join(options(path, "server", 0, 2));
    group->shutdown(60);
  };
  const auto actor = [&] {
    auto group = Group::join(options(path, "client", 1, 2));
    at::Tensor x = at::arange(4).reshape({2, 2}).to(at::kFloat).div(7).requires_grad_();
    torch::jit::Module local = encoder();
    local.forward({x.detach().requires_grad_()});
    at::Tensor x2 = x.detach().clone().requires_grad_();
    local.forward({x2}).toTensor().sum().backward();
    {
      AutogradContext context;
      const at::Tensor y = rpcSync<at::Tensor>("server", "encoder", {x});
      context.backward({y.sum()});
      expect(at::equal(context.gradient(x), x2.grad()), "the input's gradient");
      const at::Tensor w = rpcSync<at::Tensor>("server", "gradient", {context.id()});
      expect(at::equal(w, local.attr("w").toTensor().grad()), "the parameter's gradient");
      expect(!context.gradient(at::ones({1}).requires_grad_()).defined(), "no gradient");
    }
    group->shutdown(60);
  };
  EXPECT_EQ(kFine, runWorkers({learner, actor}));
}

TEST(Client, ALostWorkerEndsTheCall) {
  const std::string path = freshPath("store");
  const auto server = [&] {
    publish("die", servable("die() -> int", [](Values) -> at::IValue {
              ::kill(::getpid(), SIGKILL);
              return 0;
            }));
    auto group = Group::join(options(path, "server", 0, 2));
    group->shutdown(60);
  };
  const auto client = [&] {
    auto group = Group::join(options(path, "client", 1, 2));
    expectProblem("server", [] { rpcSync("server", "die", {}); });
    expectProblem("die.forward at worker 'server'", [] { rpcSync("server", "die", {}); });
    expect(group->lossOf("server").has_value(), "the loss is known");
  };
  EXPECT_EQ(kFine, runWorkers({server, client}, {0}));
}

// A server that two clients call and tell when they are done; `meet` says how they find each other.
std::vector<std::string> dynamicGroup(const std::function<void(JoinOptions&)>& meet) {
  const auto dynamic = [&](const std::string& name, int rank) {
    JoinOptions out = options("", name, rank, 1);
    out.world_size.reset();
    meet(out);
    return out;
  };
  const auto server = [&] {
    publish("encoder", encoder());
    std::atomic<int> asked{0};
    Group* serving = nullptr;
    ops::publish("done", servable("done() -> int", [&](Values) {
                   if (++asked == 2) serving->stopServing();
                   return at::IValue(asked.load());
                 }));
    auto group = Group::join(dynamic("server", 0));
    serving = group.get();
    group->serve();
    group->shutdown(60);
  };
  const auto client = [&](int rank) {
    auto group = Group::join(dynamic("client" + std::to_string(rank), rank));
    const auto came = [&] {
      const auto there = group->workers();
      return std::find(there.begin(), there.end(), "server") != there.end();
    };
    expect(waitUntil(came, std::chrono::seconds(30)), "the server does not join");
    expect(rpcSync("server", "encoder", {at::ones({1, 2})}).isTensor(), "a call");
    rpcSync("server", "done", {});
    group->shutdown(60);
  };
  return runWorkers({server, [&] { client(1); }, [&] { client(2); }});
}

TEST(Client, DynamicGroupsComeAndGo) {
  const std::string path = freshPath("store");
  EXPECT_EQ(kFine, dynamicGroup([&](JoinOptions& join) { join.init_method = "file://" + path; }));
}

TEST(Client, DynamicGroupsMeetAtATcpStore) {
  const std::string where = "tcp://127.0.0.1:" + freePort();
  EXPECT_EQ(kFine, dynamicGroup([&](JoinOptions& join) { join.init_method = where; }));
}

// As torchrun sets it; `size` empty: a dynamic group.
void setEnvironment(const std::string& port, int rank, const std::string& size) {
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", port.c_str(), 1);
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  size.empty() ? ::unsetenv("WORLD_SIZE") : ::setenv("WORLD_SIZE", size.c_str(), 1);
}

TEST(Client, DynamicGroupsMeetByTheEnvironment) {
  const std::string port = freePort();
  EXPECT_EQ(kFine, dynamicGroup([&](JoinOptions& join) {
              setEnvironment(port, join.rank, "");
              join.rank = -1;
              join.init_method = "env://";
            }));
}

// Two workers of a static group that call each other.
std::vector<std::string> staticGroup(const std::function<JoinOptions(int)>& meet) {
  const auto life = [&](int rank) {
    JoinOptions join = meet(rank);
    join.name = "worker" + std::to_string(rank);
    if (join.rpc.rpcTimeoutSeconds != 0) join.rpc.rpcTimeoutSeconds = 30;
    const auto group = Group::join(join);
    const std::string other = "worker" + std::to_string(1 - rank);
    expect(group->rank() == rank, "the rank");
    expect(rpcSync(other, "aten::add", {1, 2}).toInt() == 3, "a call");
    group->shutdown(60);
  };
  return runWorkers({[&] { life(0); }, [&] { life(1); }});
}

// Threads that leave the group together, and threads that look at it meanwhile.
void leaveTogether(const std::shared_ptr<Group>& group) {
  std::atomic<bool> left{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!left) {
        group->metrics();
        group->workers();
        group->lossOf(group->name());
      }
    });
  }
  const auto leave = [&] {
    group->shutdown(60);
    expect(group->workers().empty(), "who returns has left");
  };
  auto other = std::async(std::launch::async, leave);
  leave();
  other.get();
  left = true;
  for (auto& reader : readers)
    reader.join();
  group->shutdown();
}

TEST(Client, ThreadsMayLeaveAGroupTogether) {
  const std::string path = freshPath("store");
  const auto life = [&](int rank) {
    for (int round = 0; round < 10; ++round) {
      const std::string where = path + std::to_string(round);
      leaveTogether(Group::join(options(where, "worker" + std::to_string(rank), rank, 2)));
    }
  };
  EXPECT_EQ(kFine, runWorkers({[&] { life(0); }, [&] { life(1); }}));
}

TEST(Client, StaticGroupsMeetAtATcpStore) {
  const std::string where = "tcp://127.0.0.1:" + freePort();
  EXPECT_EQ(kFine, staticGroup([&](int rank) {
              JoinOptions join;
              join.rank = rank;
              join.world_size = 2;
              join.init_method = where;
              return join;
            }));
}

TEST(Client, NoLimitForCallsIsTimeEnoughToMeet) {
  const std::string port = freePort();
  EXPECT_EQ(kFine, staticGroup([&](int rank) {
              setEnvironment(port, rank, "2");
              JoinOptions join;
              join.rpc.rpcTimeoutSeconds = 0;
              return join;
            }));
}

TEST(Client, StaticGroupsMeetByTheEnvironment) {
  const std::string port = freePort();
  EXPECT_EQ(kFine, staticGroup([&](int rank) {
              setEnvironment(port, rank, "2");
              return JoinOptions();
            }));
}

TEST(Client, StaticGroupsMeetAtTheStoreOfTorchrun) {
  const std::string port = freePort();
  c10::intrusive_ptr<c10d::TCPStore> served;  // by torchrun's agent; here in rank 0
  EXPECT_EQ(kFine, staticGroup([&](int rank) {
              setEnvironment(port, rank, "2");
              ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
              c10d::TCPStoreOptions agent;
              agent.port = static_cast<std::uint16_t>(std::stoi(port));
              agent.isServer = true;
              agent.waitWorkers = false;
              if (rank == 0) served = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", agent);
              return JoinOptions();
            }));
}

TEST(Client, AJoinThatFailedCanBeTriedAgain) {
  const std::string path = freshPath("store");
  EXPECT_EQ(kFine, staticGroup([&](int rank) {
              const JoinOptions join = options(path, "", rank, 2);
              if (rank == 0) {
                JoinOptions alone = options(path, "worker0", 0, 2);
                alone.rpc.rpcTimeoutSeconds = 0.2F;
                expectProblem("gave up waiting for rank 1", [&] { Group::join(alone); });
                std::filesystem::create_directory(path + ".failed");
              }
              expect(waitUntil([&] { return std::filesystem::exists(path + ".failed"); },
                               std::chrono::seconds(30)),
                     "rank 0 has failed");
              return join;
            }));
}

TEST(Client, AProcessGroupsSizeComesFromTheEnvironment) {
  EXPECT_EQ(kFine, runWorkers({[] {
              ::setenv("WORLD_SIZE", "1", 1);
              ProcessGroupOptions alone;
              alone.rank = 0;
              alone.init_method = "file://" + freshPath("pg");
              expect(joinProcessGroup(alone)->getSize() == 1, "the size");
              leaveProcessGroup();
            }}));
}

TEST(Client, TimesComeFromTheEnvironment) {
  ::setenv("WEFT_HEARTBEAT_INTERVAL", "0.5", 1);
  ::setenv("WEFT_PEER_TIMEOUT", "3", 1);
  const JoinOptions join;
  EXPECT_EQ(join.rpc.heartbeat_interval, 0.5);
  EXPECT_EQ(join.rpc.peer_timeout, 3);
  EXPECT_EQ(join.rpc.reconnect_timeout, 3);  // the default, but not more than that
  ::setenv("WEFT_PEER_TIMEOUT", "soon", 1);
  EXPECT_THROW(JoinOptions(), c10::ValueError);
  ::unsetenv("WEFT_HEARTBEAT_INTERVAL");
  ::unsetenv("WEFT_PEER_TIMEOUT");
}

TEST(Client, StaticGroupsMeetAtAStoreOfTheirOwn) {
  const std::string path = freshPath("store");
  EXPECT_EQ(kFine, staticGroup([&](int rank) {
              JoinOptions join;
              join.rank = rank;
              join.world_size = 2;
              join.store = c10::make_intrusive<c10d::FileStore>(path, 2);
              return join;
            }));
}

}  // namespace
}  // namespace weft
