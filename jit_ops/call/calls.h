// The caller's end of a call to something published.
//
// Threads: any, without the GIL.
// Failure: std::exception. Its text is the server's or the agent's (who is lost, what timed out),
// and says what was being called; that of a timeout begins as torch's does ("RPCErr:1:RPC ran for
// more than…").
#pragma once

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "jit_ops/serve/published.h"
#include "jit_ops/serve/servable.h"
#include "transport/base/api.h"

namespace weft::ops {

using RRefPtr = c10::intrusive_ptr<torch::distributed::rpc::RRef>;

inline constexpr double kGroupsTimeout = -1.0;  // the timeout given when the group was joined

struct CallOptions {
  std::string method = kForward;
  std::int64_t version = kNewest;
  std::vector<std::string> names = {};  // keyword arguments: names of the last values
  double timeout = kGroupsTimeout;      // seconds; 0: none; -1: the group's
};

struct Call {
  std::string worker = {};
  std::string name = {};
  Values args = {};
  CallOptions options = {};
  // Gives the NamedTuples of a result the caller's classes; the result then comes with their names
  // (result_names.h). Null: they come as plain tuples. callRemote() does not use it.
  at::IValue (*with_names)(at::IValue) = nullptr;
};

// "encoder.forward version 2 at worker 'server'", for errors.
std::string describe(const Call& call);

// This process's agent. Throws std::runtime_error when the process is in no RPC group.
std::shared_ptr<torch::distributed::rpc::RpcAgent> currentAgent();

// The type of the values that become a T; null: TorchScript has none, as for a tuple of anything.
template <typename T>
c10::TypePtr typeOf() {
  if constexpr (std::is_floating_point_v<T>) return c10::FloatType::get();
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) return c10::IntType::get();
  try {
    return c10::getFakeTypePtrCopy<T>();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

// Makes a call. The value is converted to `type` as coerce() does; null: any type. If that fails,
// the call fails with an error that says what came instead.
WEFT_API at::IValue call(Call call, const c10::TypePtr& type = nullptr);
WEFT_API FuturePtr callAsync(Call call, const c10::TypePtr& type = nullptr);

// Makes a call whose value stays at the worker, and can be fetched or passed on by its RRef.
WEFT_API RRefPtr callRemote(Call call, const c10::TypePtr& type = nullptr);
WEFT_API at::IValue fetch(const RRefPtr& rref, double timeout = kGroupsTimeout,
                          const c10::TypePtr& type = nullptr);
WEFT_API FuturePtr fetchAsync(const RRefPtr& rref, double timeout = kGroupsTimeout);
// Releases the value now, or after its fetches under way, instead of when the last copy of the RRef
// is destroyed; it can't be fetched here any more. Does nothing on the owner itself.
WEFT_API void drop(const RRefPtr& rref);

// Calls a built-in operator of the worker's torch, such as "aten::add.Tensor". Without an overload
// name ("aten::add") it is the first overload that takes these arguments. Operators have neither
// methods nor versions. The value is converted as that of call().
WEFT_API FuturePtr callOperator(Call call, const c10::TypePtr& type = nullptr);

// What a worker publishes.
WEFT_API std::vector<PublishedInfo> publishedBy(const std::string& worker,
                                                double timeout = kGroupsTimeout);

// Waits for the value. It polls first, because a short call's answer comes before a sleeping thread
// would wake.
WEFT_API at::IValue waitFor(JitFuture& future);

}  // namespace weft::ops
