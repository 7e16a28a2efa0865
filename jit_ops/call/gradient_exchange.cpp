#include "jit_ops/call/gradient_exchange.h"

#include <ATen/core/jit_type.h>

#include <utility>

#include "rpc_backend/agent/weft_agent.h"

namespace weft::ops {

using torch::autograd::variable_list;

std::future<variable_list> GradientExchange::begin() {
  const std::lock_guard lock(mutex_);
  promise_.emplace();
  return promise_->get_future();
}

FuturePtr GradientExchange::sent(const FuturePtr& answer) {
  auto answered = c10::make_intrusive<Future>(c10::NoneType::get());
  const std::lock_guard lock(mutex_);
  answer_ = answer;
  answered_ = answered;
  return answered;
}

bool GradientExchange::answered(const Future& answer) {
  FuturePtr over;
  {
    const std::lock_guard lock(mutex_);
    if (answer_.get() != &answer) return false;
    answer_ = nullptr;
    over = std::exchange(answered_, nullptr);
  }
  if (answer.hasError()) {
    over->setError(answer.exception_ptr());
  } else {
    over->markCompleted();
  }
  return true;
}

void GradientExchange::set(variable_list gradients) {
  std::optional<Promise> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting = std::exchange(promise_, std::nullopt);
  }
  if (waiting) waiting->set_value(std::move(gradients));
}

void GradientExchange::fail(const std::exception_ptr& error) {
  std::optional<Promise> waiting;
  FuturePtr answer;
  {
    const std::lock_guard lock(mutex_);
    waiting = std::exchange(promise_, std::nullopt);
    answer = std::exchange(answer_, nullptr);
    answered_ = nullptr;
  }
  if (waiting) waiting->set_exception(error);
  const auto agent = rpc::WeftAgent::current();
  if (answer != nullptr && agent != nullptr) agent->cancel(*answer);
}

}  // namespace weft::ops
