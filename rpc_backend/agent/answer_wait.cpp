#include "rpc_backend/agent/answer_wait.h"

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/call/inline_waiter.h"
#include "rpc_backend/core/future_wait.h"

namespace weft::rpc {

void awaitAnswer(JitFuture& answer) {
  try {
    InlineWaiter::wait();
    awaitInterruptibly(answer);  // where this thread has no waiter
  } catch (...) {
    if (const auto agent = WeftAgent::current()) agent->cancel(answer);
    throw;
  }
}

}  // namespace weft::rpc
