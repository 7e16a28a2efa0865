// AgentContext: what the parts of one agent share: its options, its counters and its threads.
//
// The parts refer to each other and live and end together. A task that may outlive the agent holds
// keepAlive(). Any thread; the options do not change.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "rpc_backend/core/metrics.h"
#include "rpc_backend/core/own_process.h"
#include "rpc_backend/options/options.h"
#include "rpc_backend/threads/worker_pool.h"
#include "transport/base/thrown.h"

namespace weft::rpc {

struct AgentContext {
  enum class Phase : std::uint8_t {
    kJoining,  // until the agent's start(): requests wait
    kServing,
    kClosed,  // it ends, or has ended
  };

  AgentContext(std::string worker_name, worker_id_t worker_rank,
               WeftRpcBackendOptions agent_options, const ThreadHooks& hooks);

  // "worker 'a' (rank 0)", for messages.
  std::string me() const;
  // Whether torch's agent runs: from its start() to its shutdown().
  bool torchRuns() const;
  bool closed() const noexcept { return phase.load(std::memory_order_acquire) == Phase::kClosed; }
  // Has a dropper release `owned`, because the loop thread must not be the last owner of anything
  // of the user's. Without memory for that, the calling thread releases it. Throws nothing, because
  // deleters call it.
  template <typename Owned>
  void dropElsewhere(Owned owned) {
    static_cast<void>(transport::thrownBy([&] { droppers.run([owned = std::move(owned)] {}); }));
  }
  // Keeps all parts of the agent alive.
  std::shared_ptr<void> keepAlive() const { return parts.lock(); }
  // Starts one thread of each pool now, because none may be startable later. Throws c10::Error.
  void prepareThreads();
  // Completes and releases what waits for that, then ends the threads.
  void stopThreads();

  const OwnProcess process;
  const std::string name;
  const worker_id_t rank;
  const WeftRpcBackendOptions options;
  // These two are set once, before any other thread is there.
  std::weak_ptr<void> parts;
  std::weak_ptr<const std::atomic<bool>> running;  // torch's, which goes with the agent
  // A thread that reads another one than kJoining sees what create() has set.
  std::atomic<Phase> phase{Phase::kJoining};
  std::atomic<bool> hurried{false};  // after Ctrl-C: shutdown does not wait for user code
  AgentMetrics metrics;
  WorkerPool workers;     // run requests; held until the agent starts
  WorkerPool completers;  // complete futures, whose callbacks are user code
  // Release values and tensors. Destructors may be user code that makes calls, so no thread waits
  // for this pool.
  WorkerPool droppers;
};

}  // namespace weft::rpc
