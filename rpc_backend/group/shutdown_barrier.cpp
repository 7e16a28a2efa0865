#include "rpc_backend/group/shutdown_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "rpc_backend/core/log.h"
#include "rpc_backend/group/store_access.h"

namespace weft::rpc {

using std::chrono::steady_clock;

namespace {
// How long one look at the Store takes, and so a lost peer may stay unnoticed here.
constexpr milliseconds kSlice{250};
constexpr milliseconds kProbeAfter{1000};
constexpr milliseconds kProgressEvery{30000};
constexpr std::chrono::hours kForever{24 * 365};  // each call ends by its own timeout
}  // namespace

ShutdownBarrier::ShutdownBarrier(AgentContext& context, Group& group,
                                 c10::intrusive_ptr<c10d::Store> store, int index, int world)
    : context_(context),
      group_(group),
      store_(std::move(store)),
      prefix_("barrier/" + std::to_string(index) + "/"),
      world_(world) {}

std::string ShutdownBarrier::key(int round, worker_id_t rank) const {
  return prefix_ + std::to_string(round) + "/" + std::to_string(rank);
}

std::string ShutdownBarrier::doneKey(worker_id_t rank) const {
  return prefix_ + "done/" + std::to_string(rank);
}

std::vector<worker_id_t> ShutdownBarrier::others() const {
  std::vector<worker_id_t> others;
  for (int rank = 0; rank < world_; ++rank) {
    if (rank != context_.rank && !lost_.contains(rank)) {
      others.push_back(static_cast<worker_id_t>(rank));
    }
  }
  return others;
}

std::int64_t ShutdownBarrier::collect(int round, milliseconds timeout) {
  const auto started = steady_clock::now();
  auto next_progress = started + kProgressEvery;
  bool probed = false;
  std::vector<worker_id_t> missing = others();
  std::int64_t sum = 0;
  bool ended = false;
  while (!missing.empty()) {
    waitForKeys(*store_, {key(round, missing.front())}, kSlice);
    std::erase_if(missing, [&](worker_id_t rank) {
      if (store_->check({key(round, rank)})) {
        sum += std::stoll(store_->get_to_str(key(round, rank)));
        return true;
      }
      if (store_->check({doneKey(rank)})) {
        ended = true;
        return true;
      }
      if (!group_.lossOf(rank)) return false;
      lost_.insert(rank);
      return true;
    });
    const auto waited = steady_clock::now() - started;
    std::string whom;
    for (const worker_id_t rank : missing)
      whom += (whom.empty() ? "" : ", ") + group_.describe(rank);
    TORCH_CHECK(missing.empty() || timeout.count() == 0 || waited < timeout,
                "rpc.shutdown: gave up after ", timeout.count(), " ms; still missing: ", whom);
    // The loss of a peer is noticed only over a connection, so this makes one.
    if (!probed && waited > kProbeAfter) {
      for (const worker_id_t rank : missing)
        group_.ping(rank);
      probed = true;
    }
    if (steady_clock::now() > next_progress && !missing.empty()) {
      logInfo("rpc.shutdown waits for " + whom);
      next_progress += kProgressEvery;
    }
  }
  return ended ? -1 : sum;
}

std::set<std::int32_t> ShutdownBarrier::wait(milliseconds timeout) {
  ActiveCount& calls = context_.metrics.client_calls;
  std::int64_t sent_before = -1;
  for (int round = 0;; ++round) {
    calls.waitForZero(timeout.count() == 0 ? kForever : timeout);
    std::int64_t mine = calls.value();
    // A call made since the last round counts as one in flight: what it caused at others may have
    // begun after they posted. So the end takes two rounds without calls.
    const auto sent = static_cast<std::int64_t>(context_.metrics.calls_sent.load());
    mine += sent != sent_before ? 1 : 0;
    sent_before = sent;
    store_->set(key(round, context_.rank), std::to_string(mine));
    const std::int64_t others = collect(round, timeout);
    if (others < 0 || others + mine == 0) break;
  }
  store_->set(doneKey(context_.rank), "1");
  return lost_;
}

void ShutdownBarrier::linger(milliseconds wait) {
  if (context_.rank != 0) return;
  std::vector<std::string> keys;
  for (const worker_id_t rank : others()) {
    if (!group_.lossOf(rank)) keys.push_back(doneKey(rank));
  }
  if (keys.empty()) return;
  if (!waitForKeys(*store_, keys, wait)) {
    logDebug("some workers did not confirm the end of the group within " +
             std::to_string(wait.count()) + " ms");
  }
}

}  // namespace weft::rpc
