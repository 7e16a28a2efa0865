#include "pipe/stage/stage_context.h"

#include <torch/csrc/autograd/engine.h>

namespace weft::pipe {

namespace {
thread_local const StageContext* t_context = nullptr;
}  // namespace

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
