#include "rpc_backend/group/shutdown_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

#include "rpc_backend/core/log.h"
#include "rpc_backend/group/store_access.h"

namespace weft::rpc {

using std::chrono::steady_clock;

namespace {
// How long one look at the Store takes, and so a lost peer may stay unnoticed here.
constexpr milliseconds kSlice{250};
constexpr milliseconds kProbeAfter{1000};
constexpr milliseconds kProgressEvery{30000};
constexpr milliseconds kForever =
    std::chrono::hours{24 * 365};  // each call ends by its own timeout
// What workers post: in rounds their counts, then these two.
constexpr const char* kLost = "lost";
constexpr const char* kDone = "done";
}  // namespace

ShutdownBarrier::ShutdownBarrier(AgentContext& context, Group& group,
                                 c10::intrusive_ptr<c10d::Store> store, int index, int world,
                                 milliseconds timeout)
    : context_(context),
      group_(group),
      store_(std::move(store)),
      prefix_("barrier/" + std::to_string(index) + "/"),
      world_(world),
      timeout_(timeout),
      deadline_(transport::deadlineAfter(timeout.count() == 0 ? kForever : timeout)) {}

std::string ShutdownBarrier::key(const std::string& what, worker_id_t rank) const {
  return prefix_ + what + "/" + std::to_string(rank);
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

milliseconds ShutdownBarrier::timeLeft() const {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - steady_clock::now());
  return std::max(left, milliseconds{0});
}

void ShutdownBarrier::awaitOthers(const std::string& awaited,
                                  const std::function<bool(worker_id_t)>& seen) {
  const auto started = steady_clock::now();
  auto next_progress = started + kProgressEvery;
  bool probed = false;
  std::vector<worker_id_t> missing = others();
  while (!missing.empty()) {
    waitForKeys(*store_, {key(awaited, missing.front())}, std::min(kSlice, timeLeft()));
    std::erase_if(missing, [&](worker_id_t rank) {
      if (seen(rank)) return true;
      if (!group_.lossOf(rank)) return false;
      lost_.insert(rank);
      return true;
    });
    if (missing.empty()) return;
    std::string whom;
    for (const worker_id_t rank : missing)
      whom += (whom.empty() ? "" : ", ") + group_.describe(rank);
    TORCH_CHECK(timeLeft().count() > 0, "rpc.shutdown: gave up after ", timeout_.count(),
                " ms; still missing: ", whom);
    const auto now = steady_clock::now();
    // The loss of a peer is noticed only over a connection, so this makes one.
    if (!probed && now - started > kProbeAfter) {
      for (const worker_id_t rank : missing)
        group_.ping(rank);
      probed = true;
    }
    if (now > next_progress) {
      logInfo("rpc.shutdown waits for " + whom);
      next_progress += kProgressEvery;
    }
  }
}

std::int64_t ShutdownBarrier::collect(const std::string& round) {
  std::int64_t sum = 0;
  bool ended = false;
  awaitOthers(round, [&](worker_id_t rank) {
    if (store_->check({key(round, rank)})) {
      sum += std::stoll(store_->get_to_str(key(round, rank)));
      return true;
    }
    if (!store_->check({key(kLost, rank)})) return false;
    ended = true;
    return true;
  });
  return ended ? -1 : sum;
}

void ShutdownBarrier::waitForCalls() {
  ActiveCount& calls = context_.metrics.client_calls;
  std::int64_t sent_before = -1;
  for (int number = 0;; ++number) {
    calls.waitForZero(timeLeft());
    std::int64_t mine = calls.value();
    // A call made since the last round counts as one in flight: what it caused at others may have
    // begun after they posted. So the end takes two rounds without calls.
    const auto sent = static_cast<std::int64_t>(context_.metrics.calls_sent.load());
    mine += sent != sent_before ? 1 : 0;
    sent_before = sent;
    const std::string round = std::to_string(number);
    store_->set(key(round, context_.rank), std::to_string(mine));
    const std::int64_t others = collect(round);
    if (others < 0 || others + mine == 0) return;
    TORCH_CHECK(timeLeft().count() > 0, "rpc.shutdown: gave up after ", timeout_.count(),
                " ms; calls are still made, or in flight. Wait for them, or give rpc.shutdown more "
                "time");
  }
}

std::set<std::int32_t> ShutdownBarrier::agreeOnLost() {
  // A peer may take part here and yet be out of reach from here (another key).
  for (const worker_id_t rank : others()) {
    if (group_.lossOf(rank)) lost_.insert(rank);
  }
  postLost(context_.rank, lost_);
  awaitOthers(kLost, [&](worker_id_t rank) { return store_->check({key(kLost, rank)}); });
  std::set<std::int32_t> all;
  for (std::int32_t rank = 0; rank < world_; ++rank)
    all.merge(postLost(static_cast<worker_id_t>(rank), {rank}));
  return all;
}

std::set<std::int32_t> ShutdownBarrier::postLost(worker_id_t rank,
                                                 const std::set<std::int32_t>& lost) {
  std::string text;
  for (const std::int32_t one : lost)
    text += std::to_string(one) + " ";
  std::istringstream posted(store_->compareSet(key(kLost, rank), "", text + "end"));
  std::set<std::int32_t> first;
  for (std::int32_t one = 0; posted >> one;)
    first.insert(one);
  return first;
}

void ShutdownBarrier::confirm() { store_->set(key(kDone, context_.rank), "1"); }

void ShutdownBarrier::linger(milliseconds wait) {
  if (context_.rank != 0) return;
  std::vector<std::string> keys;
  for (const worker_id_t rank : others()) {
    if (!group_.lossOf(rank)) keys.push_back(key(kDone, rank));
  }
  if (keys.empty()) return;
  if (!waitForKeys(*store_, keys, wait)) {
    logDebug("some workers did not confirm the end of the group within " +
             std::to_string(wait.count()) + " ms");
  }
}

}  // namespace weft::rpc
