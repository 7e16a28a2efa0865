#include "rpc_backend/threads/agent_context.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

#include "transport/base/peer_name.h"

namespace weft::rpc {

namespace {

// Callbacks of futures may wait for further calls, which need a thread to complete them. Threads
// start only when needed, so the limit allows any nesting seen in practice.
constexpr std::size_t kMaxCompleters = 256;
constexpr std::size_t kMaxDroppers = 16;
constexpr milliseconds kGrace{10000};
constexpr milliseconds kHurriedGrace{20};  // for threads that only have to end

}  // namespace

AgentContext::AgentContext(std::string worker_name, worker_id_t worker_rank,
                           WeftRpcBackendOptions agent_options, const ThreadHooks& hooks)
    : name(std::move(worker_name)),
      rank(worker_rank),
      options(std::move(agent_options)),
      workers("weft-worker", std::max<std::size_t>(2, std::thread::hardware_concurrency()),
              static_cast<std::size_t>(options.num_worker_threads), hooks, /*held=*/true),
      completers("weft-complete", 1, kMaxCompleters, hooks),
      droppers("weft-drop", 1, kMaxDroppers, hooks) {}

std::string AgentContext::me() const { return transport::describePeer(name, rank); }

bool AgentContext::torchRuns() const {
  const auto torchs = running.lock();
  return !closed() && torchs != nullptr && *torchs;
}

void AgentContext::prepareThreads() {
  for (WorkerPool* const pool : {&workers, &completers, &droppers}) {
    const auto error = pool->prepare();
    TORCH_CHECK(!error, me(), ": ", error.text());
  }
}

void AgentContext::stopThreads() {
  const milliseconds grace = hurried ? kHurriedGrace : kGrace;
  workers.stop(grace);
  droppers.stop(grace, WorkerPool::Waiting::kRun);
  completers.stop(grace, WorkerPool::Waiting::kRun);
}

}  // namespace weft::rpc
