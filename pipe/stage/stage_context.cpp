#include "pipe/stage/stage_context.h"

#include <torch/csrc/autograd/engine.h>

#include <atomic>

namespace weft::pipe {

namespace {
thread_local const StageContext* t_context = nullptr;
}  // namespace

std::uint64_t nextMiniBatchNumber() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

const StageContext* currentStage() { return t_context; }

bool isRunAgain() {
  const bool inside = t_context != nullptr && (t_context->recomputing || t_context->in_backward);
  return inside || torch::autograd::get_current_graph_task_id() != -1;
}

StageContextGuard::StageContextGuard(const StageContext& context) : before_(t_context) {
  t_context = &context;
}
StageContextGuard::~StageContextGuard() { t_context = before_; }

}  // namespace weft::pipe
