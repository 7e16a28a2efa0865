#include "rpc_backend/group/shutdown_barrier.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <sstream>

#include "rpc_backend/core/log.h"
#include "rpc_backend/join/store_access.h"
#include "transport/base/parse_number.h"

namespace weft::rpc {

using std::chrono::steady_clock;

namespace {
// How long one look at the Store takes, and so a lost peer may stay unnoticed here.
constexpr milliseconds kSlice{250};
constexpr milliseconds kProbeEvery{1000};
constexpr std::size_t kProbed = 16;  // workers at a time
constexpr int kWatchers = 16;        // how many look for the lost first; 16 times as many next
constexpr milliseconds kHeadStart{1000};
constexpr milliseconds kProgressEvery{30000};
constexpr milliseconds kForever =
    std::chrono::hours{24 * 365};  // each call ends by its own timeout
constexpr const char* kPassedKey = "barriers";
// What workers post: in rounds their counts, then these two.
constexpr const char* kLost = "lost";
constexpr const char* kDone = "done";
// A counter's bits: how many have posted, above the sum of what they posted.
constexpr int kSumBits = 40;
constexpr std::int64_t kOnePosted = std::int64_t{1} << kSumBits;

// What a worker has posted: numbers, and then "end" and its life.
std::vector<std::int64_t> numbersIn(const std::string& posted) {
  std::vector<std::int64_t> numbers;
  std::istringstream text(posted);
  for (std::int64_t number = 0; text >> number;)
    numbers.push_back(number);
  return numbers;
}

// What is counted of the numbers: of a round their sum, else how many they are.
template <typename Numbers>
std::int64_t sumOf(const std::string& what, const Numbers& numbers) {
  if (what == kLost) return static_cast<std::int64_t>(numbers.size());
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}
}  // namespace

ShutdownBarrier::ShutdownBarrier(AgentContext& context, Group& group,
                                 c10::intrusive_ptr<c10d::Store> store, int index, int world,
                                 milliseconds timeout)
    : context_(context),
      group_(group),
      store_(std::move(store)),
      index_(index),
      prefix_("barrier/" + std::to_string(index) + "/"),
      world_(world),
      timeout_(timeout),
      deadline_(transport::deadlineAfter(timeout.count() == 0 ? kForever : timeout)),
      life_(std::to_string(std::random_device{}()) + std::to_string(std::random_device{}())) {}

std::string ShutdownBarrier::key(const std::string& what, std::int32_t rank) const {
  return prefix_ + what + "/" + std::to_string(rank);
}

std::vector<std::int32_t> ShutdownBarrier::others() const {
  // From the next rank on, so that not all look at the same ones first.
  std::vector<std::int32_t> others;
  for (std::int32_t step = 1; step < world_; ++step) {
    const std::int32_t rank = (context_.rank + step) % world_;
    if (!lost_.contains(rank)) others.push_back(rank);
  }
  return others;
}

std::vector<std::int32_t> ShutdownBarrier::absent(const std::string& what,
                                                  const std::vector<std::int32_t>& ranks,
                                                  std::size_t most) const {
  return absentRanks(
      *store_, ranks, [&](std::int32_t rank) { return key(what, rank); }, most);
}

std::string ShutdownBarrier::describe(const std::vector<std::int32_t>& ranks) const {
  const std::set<std::int32_t> ordered(ranks.begin(), ranks.end());
  std::string text;
  for (const std::int32_t rank : ordered)
    text += (text.empty() ? "" : ", ") + group_.describe(static_cast<worker_id_t>(rank));
  return text;
}

milliseconds ShutdownBarrier::timeLeft() const {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - steady_clock::now());
  return std::max(left, milliseconds{0});
}

void ShutdownBarrier::post(const std::string& what, const std::set<std::int64_t>& numbers) {
  const std::string own = key(what, context_.rank);
  const std::string text = c10::Join(" ", numbers) + " end " + life_;
  const std::string there = store_->compareSet(own, "", text);
  std::int64_t counted = kOnePosted + sumOf(what, numbers);
  if (there != text) {
    in_place_ = true;
    store_->set(own, text);
    counted = sumOf(what, numbers) - sumOf(what, numbersIn(there));
  }
  const std::int64_t total = store_->add(prefix_ + what + "/total", counted);
  if (total >> kSumBits < world_) return;
  const std::int64_t sum = total % kOnePosted;
  if (what == kLost && sum > 0) return decide(what);
  store_->compareSet(prefix_ + what + "/all", "", what == kLost ? "nobody" : std::to_string(sum));
}

void ShutdownBarrier::decide(const std::string& what) {
  std::vector<std::string> keys;
  for (std::int32_t rank = 0; rank < world_; ++rank) {
    // A lost one may have posted before.
    if (!lost_.contains(rank) || store_->check({key(what, rank)})) keys.push_back(key(what, rank));
  }
  std::int64_t sum = 0;
  std::set<std::int32_t> lost = lost_;
  for (const auto& posted : store_->multiGet(keys)) {
    for (const std::int64_t number : numbersIn({posted.begin(), posted.end()})) {
      sum += number;
      lost.insert(static_cast<std::int32_t>(number));
    }
  }
  store_->compareSet(prefix_ + what + "/all", "",
                     what == kLost ? c10::Join(" ", lost) : std::to_string(sum));
}

void ShutdownBarrier::noticeLost() {
  for (std::int32_t rank = 0; rank < world_; ++rank) {
    if (rank == context_.rank) continue;
    if (group_.lossOf(static_cast<worker_id_t>(rank))) {
      lost_.insert(rank);
    } else if (lost_.erase(rank) > 0) {
      probed_.erase(rank);  // it is back, and may be lost again
    }
  }
}

bool ShutdownBarrier::allPosted(const std::string& what) const {
  if (!in_place_) {
    if (lost_.empty()) return false;  // then the last one decides
    const std::int64_t posted = store_->add(prefix_ + what + "/total", 0) >> kSumBits;
    if (posted + static_cast<std::int64_t>(lost_.size()) < world_) return false;
  }
  return absent(what, others(), 1).empty();
}

void ShutdownBarrier::probe(const std::string& what) {
  std::vector<std::int32_t> unprobed = others();
  std::erase_if(unprobed, [&](std::int32_t rank) { return probed_.contains(rank); });
  // The loss of a peer is noticed only over a connection, so this makes one.
  for (const std::int32_t rank : absent(what, unprobed, kProbed)) {
    group_.ping(static_cast<worker_id_t>(rank));
    probed_.insert(rank);
  }
}

std::string ShutdownBarrier::await(const std::string& what) {
  const auto started = steady_clock::now();
  auto next_progress = started + kProgressEvery;
  auto turn = started;
  for (int before = kWatchers; before <= context_.rank; before *= kWatchers)
    turn += kHeadStart;
  auto next_probe = turn + kProbeEvery;
  const std::string all = prefix_ + what + "/all";
  while (!waitForKeys(*store_, {all}, std::min(kSlice, timeLeft()), started)) {
    noticeLost();
    const auto now = steady_clock::now();
    if (now >= turn && allPosted(what)) {
      decide(what);
      continue;
    }
    TORCH_CHECK(timeLeft().count() > 0, "waiting for all workers: gave up after ", timeout_.count(),
                " ms; still missing: ", describe(absent(what, others())));
    if (now > next_probe) {
      probe(what);
      next_probe = now + kProbeEvery;
    }
    if (now > next_progress) {
      logInfo("rpc.shutdown waits for " + describe(absent(what, others(), kProbed)));
      next_progress += kProgressEvery;
    }
  }
  return store_->get_to_str(all);
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
    post(round, {mine});
    if (await(round) == "0") return;
    TORCH_CHECK(timeLeft().count() > 0, "waiting for all workers: gave up after ", timeout_.count(),
                " ms; calls are still made, or in flight. Wait for them, or give rpc.shutdown more "
                "time");
  }
}

std::set<std::int32_t> ShutdownBarrier::agreeOnLost() {
  // A peer may take part here and yet be out of reach from here (another key).
  noticeLost();
  std::set<std::int64_t> known(lost_.begin(), lost_.end());
  if (group_.wasRestarted()) known.insert(context_.rank + world_);
  post(kLost, known);
  const auto agreed = numbersIn(await(kLost));
  return {agreed.begin(), agreed.end()};
}

int ShutdownBarrier::passedBy(c10d::Store& store, const std::string& who) {
  if (!store.check({kPassedKey})) return 0;
  const std::string text = store.get_to_str(kPassedKey);
  const auto passed = transport::parseNumber<int>(text);
  TORCH_CHECK(passed && *passed >= 0, who,
              ": the Store's count of the group's barriers is malformed: '", text.substr(0, 32),
              "'");
  return *passed;
}

std::vector<std::int32_t> ShutdownBarrier::pass(bool last) {
  waitForCalls();
  const auto agreed = agreeOnLost();
  store_->set(kPassedKey, std::to_string(index_ + 1));
  store_->set(key(kDone, context_.rank), "1");
  std::set<std::int32_t> found;
  for (const std::int32_t one : agreed) {
    const std::int32_t rank = one % world_;
    found.insert(rank);
    // One that was started again is here, whoever has lost its former life.
    if (rank == context_.rank || agreed.contains(rank + world_)) continue;
    const auto id = static_cast<worker_id_t>(rank);
    logWarning(
        "rpc.shutdown went on without a missing worker: " +
        group_.lossOf(id).value_or(group_.describe(id) + " was declared lost by another worker"));
  }
  if (last) linger(fromSeconds(context_.options.peer_timeout));
  return {found.begin(), found.end()};
}

void ShutdownBarrier::linger(milliseconds wait) {
  if (context_.rank != 0) return;
  std::vector<std::string> keys;
  noticeLost();
  for (const std::int32_t rank : others())
    keys.push_back(key(kDone, rank));
  if (keys.empty()) return;
  if (!waitForKeys(*store_, keys, wait)) {
    logDebug("some workers did not confirm the end of the group within " +
             std::to_string(wait.count()) + " ms");
  }
}

}  // namespace weft::rpc
