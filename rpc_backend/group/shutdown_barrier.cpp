#include "rpc_backend/group/shutdown_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

#include "rpc_backend/core/log.h"
#include "rpc_backend/group/store_wait.h"

namespace weft::rpc {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {
// How long one look at the Store blocks: the bound on noticing a lost peer here.
constexpr milliseconds kSlice{250};
constexpr milliseconds kProbeAfter{1000};
constexpr milliseconds kProgressEvery{30000};
}  // namespace

ShutdownBarrier::ShutdownBarrier(c10::intrusive_ptr<c10d::Store> store, int index,
                                 std::int32_t rank, int world, Hooks hooks)
    : store_(std::move(store)),
      prefix_("barrier/" + std::to_string(index) + "/"),
      rank_(rank),
      world_(world),
      hooks_(std::move(hooks)) {}

std::string ShutdownBarrier::key(int round, std::int32_t rank) const {
  return prefix_ + std::to_string(round) + "/" + std::to_string(rank);
}

std::string ShutdownBarrier::doneKey(std::int32_t rank) const {
  return prefix_ + "done/" + std::to_string(rank);
}

std::int64_t ShutdownBarrier::collect(int round, milliseconds timeout) {
  const auto started = steady_clock::now();
  auto next_progress = started + kProgressEvery;
  bool probed = false;
  std::vector<std::int32_t> missing;
  for (std::int32_t rank = 0; rank < world_; ++rank) {
    if (rank != rank_ && !lost_.contains(rank)) missing.push_back(rank);
  }
  std::int64_t sum = 0;
  bool ended = false;
  while (!missing.empty()) {
    waitForKeys(*store_, {key(round, missing.front())}, kSlice);
    std::erase_if(missing, [&](std::int32_t rank) {
      if (store_->check({key(round, rank)})) {
        sum += std::stoll(store_->get_to_str(key(round, rank)));
        return true;
      }
      if (store_->check({doneKey(rank)})) {
        ended = true;
        return true;
      }
      if (!hooks_.is_lost(rank)) return false;
      lost_.insert(rank);
      return true;
    });
    const auto waited = steady_clock::now() - started;
    std::string whom;
    for (const std::int32_t rank : missing)
      whom += (whom.empty() ? "" : ", ") + hooks_.describe(rank);
    TORCH_CHECK(missing.empty() || timeout.count() == 0 || waited < timeout,
                "rpc.shutdown: gave up after ", timeout.count(), " ms; still missing: ", whom);
    // A peer that we never talked to would not be missed: talking to it makes its loss known.
    if (!probed && waited > kProbeAfter) {
      for (const std::int32_t rank : missing)
        hooks_.probe(rank);
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
  std::int64_t sent_before = -1;
  for (int round = 0;; ++round) {
    std::int64_t mine = hooks_.active_calls();
    // A call made since the last look counts as one in flight: what it set off at others
    // may have begun after they posted. So the end is two quiet rounds in a row.
    const std::int64_t sent = hooks_.calls_sent();
    mine += sent != sent_before ? 1 : 0;
    sent_before = sent;
    store_->set(key(round, rank_), std::to_string(mine));
    const std::int64_t others = collect(round, timeout);
    if (others < 0 || others + mine == 0) break;
  }
  store_->set(doneKey(rank_), "1");
  return lost_;
}

void ShutdownBarrier::linger(milliseconds wait) {
  if (rank_ != 0) return;
  std::vector<std::string> keys;
  for (std::int32_t rank = 1; rank < world_; ++rank) {
    if (!lost_.contains(rank) && !hooks_.is_lost(rank)) keys.push_back(doneKey(rank));
  }
  if (keys.empty()) return;
  if (!waitForKeys(*store_, keys, wait)) {
    logDebug("some workers did not confirm the end of the group within " +
             std::to_string(wait.count()) + " ms");
  }
}

}  // namespace weft::rpc
