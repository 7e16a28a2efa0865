// The way of gradients through a call that a compiler has in its graph.
//
// Distributed autograd hangs its functions on the tensors that a call takes and gives. A compiled
// graph keeps no such functions: its backward is a graph of its own, in which going back must be an
// operation like any other. So a recorded call ends distributed autograd's graph at both sides of
// the call and keeps the two ends, and its backward joins them: it sends the gradients of the
// results to the worker, as RecvRpcBackward would, and waits for those of the arguments, which come
// back through SendRpcBackward as part of the distributed backward that is under way.
//
// Any thread. A route lives as long as the autograd context it was recorded in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "jit_ops/serve/servable.h"

namespace weft::ops {

inline constexpr std::int64_t kNoRemoteBackward = 0;

// Whether calls of this thread are recorded for distributed autograd.
bool inAutogradContext();

class RemoteBackwardContext {
 public:
  // `what` is being called, for errors; `timeout` (seconds, negative: the group's, 0: none) bounds
  // the wait in backward.
  RemoteBackwardContext(std::string what, double timeout);
  ~RemoteBackwardContext();
  RemoteBackwardContext(const RemoteBackwardContext&) = delete;
  RemoteBackwardContext& operator=(const RemoteBackwardContext&) = delete;

  // The arguments as they are sent: those at the indices `needed` lead to this route.
  Values open(at::TensorList inputs, at::IntArrayRef needed);
  // What came for them, as it came. False when no gradients go back from there: nothing in it needs
  // any.
  bool close(const std::vector<at::Tensor>& outputs, const std::string& worker);
  // The route's number; from now on goBack() finds it.
  static std::int64_t keep(std::shared_ptr<RemoteBackwardContext> route);

  // Gradients of the inputs at `needed`, in that order, from gradients of the outputs at `outputs`.
  // Waits, without a lock, for the workers behind. Throws std::exception: no context, one that has
  // ended, a backward that is not distributed autograd's, a lost worker, the timeout; all name
  // `what`.
  static std::vector<at::Tensor> goBack(std::int64_t number, const std::string& what,
                                        at::TensorList gradients, at::IntArrayRef outputs,
                                        at::TensorList inputs, at::IntArrayRef needed);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace weft::ops
