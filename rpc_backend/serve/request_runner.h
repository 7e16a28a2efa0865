// RequestRunner: runs a request on streams of its own and answers it. Its streams wait for the work
// of those requests that the same caller has already got answers for (CallOrder).
//
// Threads: workers. If a request's result comes later, the thread that completes the result
// answers. Failure: what a request throws is its answer.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <optional>

#include "rpc_backend/serve/responder.h"

namespace weft::rpc {

class RequestRunner {
 public:
  RequestRunner(AgentContext& context, Group& group, Responder& responder,
                std::unique_ptr<RequestCallback> callback)
      : context_(context), group_(group), responder_(responder), callback_(std::move(callback)) {}

  // `take` makes the request's message; it runs on the call's streams.
  void run(RunningRequest running, const std::function<MessagePtr()>& take);

 private:
  // Shows the request to the flight record and the profiler, if they listen.
  void show(RunningRequest& running, const Message& request,
            std::optional<at::RecordFunction>& range) const;

  AgentContext& context_;
  Group& group_;
  Responder& responder_;
  const std::unique_ptr<RequestCallback> callback_;
};

}  // namespace weft::rpc
