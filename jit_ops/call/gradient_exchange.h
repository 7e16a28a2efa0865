// GradientExchange: what one recorded call waits for in backward: the gradients that come back, and
// the worker's answer to those that were sent.
//
// It may be used again, for a further backward. Threads: any.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <future>
#include <mutex>
#include <optional>

#include "jit_ops/serve/servable.h"

namespace weft::ops {

class GradientExchange {
 public:
  // The gradients, or the error in their place: whichever is set first.
  std::future<torch::autograd::variable_list> begin();
  // `answer`: of the message that was sent. Returns what distributed autograd is to wait for.
  FuturePtr sent(const FuturePtr& answer);
  // That answer has come. False: nobody waits for it any more.
  bool answered(const Future& answer);
  void set(torch::autograd::variable_list gradients);
  // Ends the wait with `error`, and cancels the message if it is not answered. What sent() returned
  // is never completed then: only the first error of a backward may reach torch's engine, which
  // drops its state at that one.
  void fail(const std::exception_ptr& error);

 private:
  using Promise = std::promise<torch::autograd::variable_list>;

  std::mutex mutex_;
  std::optional<Promise> promise_;
  FuturePtr answer_;    // that is waited for; null: none
  FuturePtr answered_;  // what sent() returned of it
};

}  // namespace weft::ops
