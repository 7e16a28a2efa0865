// Weft for C++ programs: the one header. Needs libweft.so and LibTorch, never Python. By example:
// docs/guide/cpp.md.
//
//   auto group = weft::Group::join({.name = "client", .rank = 1, .world_size = 2});
//   at::Tensor y = weft::rpcSync<at::Tensor>("server", "encoder", {x});
//   group->shutdown();
//
// A process is in one group at a time (torch's rule). All functions may be called from any thread
// once the group is joined. Failures are exceptions (std::exception) whose text names worker, call
// and reason. Requests from Python peers that carry Python are refused: this library can't unpickle
// it.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jit_ops/call/calls.h"
#include "jit_ops/process_group.h"
#include "jit_ops/serve/batched.h"
#include "jit_ops/serve/published.h"
#include "jit_ops/serve/servable.h"
#include "rpc_backend/options/options.h"
#include "transport/base/api.h"

namespace weft {

namespace rpc {
class WeftAgent;
}

using Values = std::vector<at::IValue>;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;  // wait with weft::wait(future)

struct JoinOptions {
  std::string name = {};               // of this worker: unique in the group
  int rank = -1;                       // -1: from RANK
  std::optional<int> world_size = {};  // none: a dynamic group, which workers join and leave
  // Where the workers meet, as torch.distributed has it: "env://" (MASTER_ADDR, MASTER_PORT, and
  // WORLD_SIZE for a static group), "tcp://host:port" (rank 0 serves the store), "file:///path".
  std::string init_method = "env://";
  c10::intrusive_ptr<c10d::Store> store =
      {};                               // instead of init_method: the same one as the others'
  rpc::WeftRpcBackendOptions rpc = {};  // timeouts, threads; its request_policy is always kScript
};

class WEFT_API Group {
 public:
  // Meets the others (static group: all of them, at most rpc.rpcTimeoutSeconds, or 60 s
  // where that is 0, no limit for calls) and serves from then on. Throws c10::Error; then nothing
  // is left running.
  static std::shared_ptr<Group> join(JoinOptions options);
  // Leaves at once if shutdown() was not called: calls in flight fail.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const noexcept { return name_; }
  int rank() const noexcept { return rank_; }
  std::vector<std::string> workers() const;
  // Why that worker is lost; nothing while it is not.
  std::optional<std::string> lossOf(const std::string& worker) const;
  // Figures of the agent, as Python's get_debug_info().
  std::unordered_map<std::string, std::string> metrics() const;

  // Blocks while others call what is published here, until stopServing().
  void serve();
  void stopServing() noexcept { stop_.store(true); }  // any thread, also a signal handler

  // The orderly end. A static group waits until all are here (it serves meanwhile), a dynamic one
  // only for calls of its own. `timeout` seconds, 0: as long as the others live. Idempotent: a
  // second caller waits for the first, whose timeout counts.
  void shutdown(double timeout = 0);

 private:
  Group(std::string name, int rank) : name_(std::move(name)), rank_(rank) {}
  std::shared_ptr<rpc::WeftAgent> agent() const;  // null once shut down
  // For the thread that is to leave the group; null for the others, after it has done so.
  std::shared_ptr<rpc::WeftAgent> beginToLeave();
  void finish(rpc::WeftAgent& agent, bool ignore_leaks) noexcept;

  const std::string name_;
  const int rank_;
  mutable std::mutex mutex_;
  std::condition_variable left_;
  bool leaving_ = false;
  std::shared_ptr<rpc::WeftAgent> agent_;
  std::atomic<bool> stop_{false};
};

using ops::CallOptions;

// `what` is a published name ("encoder") or a built-in operator ("aten::add", "aten::add.Tensor"),
// which has no methods and no versions.
WEFT_API Future rpcAsync(const std::string& worker, const std::string& what, Values args,
                         const CallOptions& options = {});
// The result is converted to `type` as arguments are; null: any type.
WEFT_API at::IValue rpcSync(const std::string& worker, const std::string& what, Values args,
                            const CallOptions& options = {}, const c10::TypePtr& type = nullptr);
// The result as a T; fails when it is something else.
template <typename T>
T rpcSync(const std::string& worker, const std::string& what, Values args,
          const CallOptions& options = {}) {
  return rpcSync(worker, what, std::move(args), options, ops::typeOf<T>()).template to<T>();
}
inline at::IValue wait(const Future& future) { return ops::waitFor(*future); }

// What code that runs for another worker (a servable) may ask about its call, on the thread that
// serves it. How long the caller still waits, in seconds, 0 when the time is up; nothing outside of
// calls and in one without a timeout.
WEFT_API std::optional<double> deadline() noexcept;
// Whether nobody waits for the answer any more. False outside of calls.
WEFT_API bool cancelled() noexcept;

// A value that stays at its owner. Copies share it; the owner frees it when the last is gone.
class WEFT_API RRef {
 public:
  explicit RRef(ops::RRefPtr rref) : rref_(std::move(rref)) {}
  // An RRef among the values of a call.
  static RRef from(const at::IValue& value);
  at::IValue toValue() const;  // to send it as an argument

  at::IValue toHere(double timeout = ops::kGroupsTimeout) const {
    return ops::fetch(rref_, timeout);
  }
  Future toHereAsync(double timeout = ops::kGroupsTimeout) const {
    return ops::fetchAsync(rref_, timeout);
  }
  std::string owner() const { return rref_->ownerName(); }
  void drop() { ops::drop(rref_); }  // now; can't be fetched here any more

 private:
  ops::RRefPtr rref_;
};

// Runs what is published and leaves the result there. `type` is what the RRef says it holds: needed
// where TorchScript or Python asks for its type, e.g. c10::TensorType::get().
WEFT_API RRef remote(const std::string& worker, const std::string& name, Values args,
                     const CallOptions& options = {}, const c10::TypePtr& type = nullptr);

// Publishing: see jit_ops/serve/published.h for versions, jit_ops/serve/servable.h and
// jit_ops/serve/batched.h for what.
using ops::batched;
using ops::BatchOptions;
using ops::publish;
using ops::published;
using ops::publishedBy;
using ops::PublishedInfo;
using ops::servable;
using ops::unpublish;
inline std::int64_t publish(const std::string& name, const torch::jit::Module& module,
                            std::int64_t version = ops::kNewest) {
  return ops::publish(name, ops::servable(module), version);
}

// From now on this process takes scripted stages of pipelines: any worker of the group may send it
// TorchScript to run, and train it (docs/guide/pipelines.md). Any thread; before or after joining;
// again does nothing.
WEFT_API void servePipelines();

// Distributed autograd: calls made on this thread while one lives are recorded, backward() runs
// through all the workers that took part. Each worker's gradients are in its own context.
class WEFT_API AutogradContext {
 public:
  AutogradContext();
  ~AutogradContext();  // frees the context everywhere
  AutogradContext(const AutogradContext&) = delete;
  AutogradContext& operator=(const AutogradContext&) = delete;

  std::int64_t id() const noexcept { return id_; }
  void backward(const std::vector<at::Tensor>& roots, bool retain_graph = false);
  // The gradient of a leaf of this process; undefined: it got none.
  at::Tensor gradient(const at::Tensor& leaf) const;

 private:
  std::int64_t id_;
};

}  // namespace weft
