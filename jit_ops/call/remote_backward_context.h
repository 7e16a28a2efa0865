// RemoteBackwardContext: the backward of a remote call inside a graph that a compiler made.
//
// Distributed autograd attaches its functions to the tensors that a call takes and gives. The
// backward of a compiled graph is a graph of its own and keeps no such functions. So a recorded
// call ends distributed autograd's graph on both sides and keeps the two ends; backward() joins
// them: it sends the gradients of the results to the worker, as RecvRpcBackward does, and waits for
// those of the arguments, which come through SendRpcBackward as part of the same distributed
// backward. Both are tasks of the inter-op pool, hence InteropPool.
//
// When one call's gradients fail to come, those of all other calls of the context fail too: the
// worker answers none of them until its whole backward is over, which it never is then.
//
// Threads: any. It lives as long as the autograd context in which the call was recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/autograd/context/context.h>

#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jit_ops/serve/servable.h"
#include "third_party/torch/torch_compat.h"

namespace weft::ops {

// Instead of a call's number: why it was not recorded.
inline constexpr std::int64_t kNoRemoteBackward = 0;
inline constexpr std::int64_t kCalledInBackward = -1;  // by what computes a forward again there

// Whether calls of this thread are recorded for distributed autograd.
bool inAutogradContext();

// The reason for a call of this thread that is not recorded.
std::int64_t whyNotRecorded();

class GradientExchange;

class RemoteBackwardContext {
 public:
  using Tensors = std::vector<at::Tensor>;

  // `timeout` (seconds, -1: the group's, 0: none) bounds the wait in backward.
  explicit RemoteBackwardContext(double timeout);
  RemoteBackwardContext(const RemoteBackwardContext&) = delete;
  RemoteBackwardContext& operator=(const RemoteBackwardContext&) = delete;

  // The arguments as they are sent: those at the indices `needed` lead back here.
  Values open(at::TensorList inputs, at::IntArrayRef needed);
  // The results, as they came. False when none of them needs gradients.
  bool close(const Tensors& outputs, const std::string& worker);
  // Gives the call a number, by which backward() finds it.
  static std::int64_t keep(std::shared_ptr<RemoteBackwardContext> call);

  // Gradients of the inputs at `needed`, in that order, from gradients of the outputs at `outputs`.
  // Waits, without a lock, for the workers behind, also without a timeout no longer than the
  // context lives. Throws std::exception: no context, one that has ended, a backward that is not
  // distributed autograd's, a lost worker, the timeout, no thread to wait on (ScopedPoolWait); all
  // name `what` was called.
  static Tensors backward(std::int64_t number, const std::string& what, at::TensorList gradients,
                          at::IntArrayRef outputs, at::TensorList inputs, at::IntArrayRef needed);

 private:
  using Context = torch::distributed::autograd::DistAutogradContext;

  static void checkRecorded(std::int64_t number, const std::string& what);
  static std::shared_ptr<RemoteBackwardContext> find(std::int64_t number);
  // Ends the waits and the calls to workers of all calls recorded in that context.
  static void failAll(const std::shared_ptr<Context>& here, const std::exception_ptr& error);
  Tensors exchange(const std::shared_ptr<Context>& here, const std::string& what,
                   at::TensorList gradients, at::IntArrayRef outputs, at::TensorList inputs,
                   at::IntArrayRef needed);
  void send(Context& here, at::TensorList gradients, at::IntArrayRef outputs);
  void endHere(const std::shared_ptr<Context>& here, at::TensorList inputs,
               at::IntArrayRef needed) const;
  Tensors wait(std::future<Tensors> coming, std::int64_t context, const std::string& what) const;

  const double timeout_;
  const std::weak_ptr<Context> context_;
  const std::shared_ptr<GradientExchange> exchange_;
  pipe::NodePtr sink_ = {};
  std::optional<std::int64_t> message_ = {};  // that brought the outputs, in the context's numbers
  pipe::NodePtr receiver_ = {};
  std::string worker_ = {};
  std::vector<int> place_ = {};  // of each output's gradient among the receiver's; -1: none
};

}  // namespace weft::ops
