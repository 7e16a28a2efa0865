#include "rpc_backend/agent/answer_wait.h"

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/call/inline_waiter.h"
#include "rpc_backend/core/future_wait.h"
#include "transport/base/interruption.h"

namespace weft::rpc {

void awaitAnswer(JitFuture& answer) {
  try {
    InlineWaiter::wait();
    if (!answer.completed()) transport::raiseIfInterrupted();  // the waiter let no handler run
    awaitInterruptibly(answer);
  } catch (...) {
    if (const auto agent = WeftAgent::current()) agent->cancel(answer);
    throw;
  }
}

}  // namespace weft::rpc
