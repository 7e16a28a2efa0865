#include "rpc_backend/serve/request_runner.h"

#include <c10/core/StreamGuard.h>

#include "rpc_backend/core/call_streams.h"
#include "rpc_backend/core/innermost.h"
#include "rpc_backend/serve/callback/builtin_call.h"
#include "rpc_backend/serve/thread_state.h"
#include "rpc_backend/trace/call_range.h"
#include "rpc_backend/trace/called_function.h"

namespace weft::rpc {

namespace {

// torch leaves the profiler's callback on the thread that ran a profiled request (2.11: the
// continuation forgets its handle), and the next profiled request there then records nothing.
class ProfilerCallbacksGuard {
 public:
  ProfilerCallbacksGuard() : saved_(at::get_record_function_tls_()) {}
  ~ProfilerCallbacksGuard() { at::set_record_function_tls_(saved_); }
  ProfilerCallbacksGuard(const ProfilerCallbacksGuard&) = delete;
  ProfilerCallbacksGuard& operator=(const ProfilerCallbacksGuard&) = delete;

 private:
  const at::RecordFunctionTLS saved_;
};

}  // namespace

void RequestRunner::run(RunningRequest running, const std::function<MessagePtr()>& take) {
  AgentMetrics& metrics = context_.metrics;
  metrics.server_calls.fetch_add(1, std::memory_order_relaxed);
  metrics.calls_served.fetch_add(1, std::memory_order_relaxed);
  FuturePtr result;
  const auto streams = streamsFromPool(group_.devices());
  const c10::MultiStreamGuard guard(streams);
  try {
    const FreshThreadState state;  // ends before the answer is sent, which runs operators, too
    const MessagePtr request = take();
    std::optional<at::RecordFunction> range;
    show(running, *request, range);
    running.source.order.follow();
    std::optional<ProfilerCallbacksGuard> profiler;
    if (request->type() == MessageType::RUN_WITH_PROFILING_REQ) profiler.emplace();
    const MessagePtr answer = serveBuiltin(*request, context_.options.request_policy);
    result = answer != nullptr ? completedFuture(answer, {}) : (*callback_)(*request, streams);
  } catch (...) {
    result = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    result->setError(std::current_exception());
  }
  // A result on devices is answered from a callback, whose streams wait for those of the result.
  if (result->completed() && result->devices().empty()) {
    metrics.server_calls.fetch_sub(1, std::memory_order_relaxed);
    responder_.respond(running, *result, streams);
    return;
  }
  metrics.server_async_calls.fetch_add(1, std::memory_order_relaxed);
  result->addCallback([this, alive = context_.keepAlive(), running, streams](JitFuture& future) {
    context_.metrics.server_calls.fetch_sub(1, std::memory_order_relaxed);
    context_.metrics.server_async_calls.fetch_sub(1, std::memory_order_relaxed);
    responder_.respond(running, future, streams);
  });
}

void RequestRunner::show(RunningRequest& running, const Message& request,
                         std::optional<at::RecordFunction>& range) const {
  CallRecorder& recorder = CallRecorder::get();
  const RequestSource& source = running.source;
  running.record = recorder.serves(source.id, source.from, request, source.arrived);
  if (!CallRange::wanted()) return;
  const Innermost asked = innermost(request.type(), request.payload());
  constexpr std::int64_t kNsPerUs = 1000;
  const auto queued = source.arrived == 0 ? 0 : (recorder.now() - source.arrived) / kNsPerUs;
  CallRange::begin(range, context_.name, functionOf(asked.type, asked.payload),
                   static_cast<std::int64_t>(bytesOf(request)), queued);
}

}  // namespace weft::rpc
