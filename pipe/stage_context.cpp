#include "pipe/stage_context.h"

namespace weft::pipe {

namespace {
thread_local const StageContext* t_context = nullptr;
}  // namespace

const StageContext* currentStage() { return t_context; }

StageContextGuard::StageContextGuard(const StageContext& context) : before_(t_context) {
  t_context = &context;
}
StageContextGuard::~StageContextGuard() { t_context = before_; }

}  // namespace weft::pipe
