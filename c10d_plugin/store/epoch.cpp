#include "c10d_plugin/store/epoch.h"

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/store/all_gather.h"
#include "transport/base/interruption.h"
#include "transport/base/os/secure_random.h"

namespace weft::collectives {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

namespace {

constexpr milliseconds kLongestNap{50};
constexpr const char* kNonce = "epoch";
constexpr const char* kSeen = "seen";
constexpr const char* kView = "view";
constexpr const char* kAgreed = "agreed";

class Agreement {
 public:
  Agreement(KeyValue& store, int rank, int size, std::string nonce, Deadline deadline)
      : store_(store),
        rank_(rank),
        ranks_(allRanks(size)),
        nonce_(std::move(nonce)),
        deadline_(deadline) {}

  Result<std::string> run() {
    if (Error error = store_.set(std::string(kNonce) + "/" + std::to_string(rank_), nonce_))
      return error;
    return rank_ == 0 ? lead() : follow();
  }

 private:
  Result<std::string> lead() {
    const auto nonces = topicKeys(kNonce, ranks_);
    const auto seen = topicKeys(kSeen, ranks_);
    if (Error error = store_.set(seen.front(), nonce_ + nonce_)) return error;
    std::string view;
    for (milliseconds nap{1};; nap = std::min(nap * 2, kLongestNap)) {
      auto said = store_.getAll(nonces, slice());
      if (said.ok()) {
        std::string read;
        for (const std::string& nonce : said.value())
          read += fit(nonce);
        if (read != std::exchange(view, read)) {
          if (Error error = store_.set(kView, view)) return error;
        }
        const auto confirmed = store_.getAll(seen, slice());
        if (!confirmed.ok() && confirmed.error().code() != ErrorCode::kTimeout)
          return confirmed.error();
        if (confirmed.ok() && unconfirmed(confirmed.value(), view).empty()) {
          if (Error error = store_.set(kAgreed, view)) return error;
          return nonce_;
        }
      } else if (said.error().code() != ErrorCode::kTimeout) {
        return said.error();
      }
      if (Error error = pause(nap)) return error;
    }
  }

  Result<std::string> follow() {
    std::string confirmed;  // rank 0's nonce in it
    for (milliseconds nap{1};; nap = std::min(nap * 2, kLongestNap)) {
      const auto view = store_.get(kView, slice());
      if (view.ok() && has(view.value()) && view.value().substr(0, nonce_.size()) != confirmed) {
        confirmed = view.value().substr(0, nonce_.size());
        const std::string key = std::string(kSeen) + "/" + std::to_string(rank_);
        if (Error error = store_.set(key, confirmed + nonce_)) return error;
      }
      if (!view.ok() && view.error().code() != ErrorCode::kTimeout) return view.error();
      if (!confirmed.empty()) {
        const auto agreed = store_.get(kAgreed, slice());
        if (!agreed.ok() && agreed.error().code() != ErrorCode::kTimeout) return agreed.error();
        if (agreed.ok() && has(agreed.value())) return agreed.value().substr(0, nonce_.size());
      }
      if (Error error = pause(nap)) return error;
    }
  }

  // When a wait for one key ends: soon, because other keys may change meanwhile.
  Deadline slice() const { return std::min(deadline_, steady_clock::now() + kLongestNap); }

  // Cuts or pads a nonce to its length, because anybody who reaches the Store may write to it.
  std::string fit(std::string nonce) const {
    nonce.resize(nonce_.size(), ' ');
    return nonce;
  }

  // Whether this rank's nonce is in the view, at its place.
  bool has(const std::string& view) const {
    return view.size() == nonce_.size() * ranks_.size() &&
           view.compare(nonce_.size() * static_cast<std::size_t>(rank_), nonce_.size(), nonce_) ==
               0;
  }

  // The ranks that have not confirmed the view: they have not come yet, or have not seen it.
  std::vector<int> unconfirmed(const std::vector<std::string>& seen,
                               const std::string& view) const {
    std::vector<int> ranks;
    for (const int rank : ranks_) {
      const auto at = static_cast<std::size_t>(rank);
      const std::string theirs = view.substr(at * nonce_.size(), nonce_.size());
      if (seen[at] != view.substr(0, nonce_.size()) + theirs) ranks.push_back(rank);
    }
    return ranks;
  }

  Error pause(milliseconds nap) {
    if (steady_clock::now() >= deadline_) return notCome(missing());
    if (transport::interrupted())
      return {ErrorCode::kInterrupted, std::string("forming the group was ") + kInterrupted};
    if (const auto now = steady_clock::now(); now >= next_warning_) {
      if (mayWarn(rank_, ranks_)) warnOfSilence(store_, rank_, missing());
      next_warning_ = now + kWarnAfter;
    }
    std::this_thread::sleep_for(nap);
    return Error::ok();
  }

  // The ranks that never came or, if the Store has an earlier epoch's keys, confirmed nothing.
  std::vector<int> missing() {
    std::vector<int> silent = silentRanks(store_, kNonce, ranks_);
    const auto view = store_.get(kView, steady_clock::now());
    if (!view.ok() || !has(view.value())) {
      // Rank 0 has not come, unless it waits for somebody as well.
      if (silent.empty()) silent = {0};
      return silent;
    }
    std::vector<std::string> seen;
    for (const std::string& key : topicKeys(kSeen, ranks_)) {
      auto said = store_.get(key, steady_clock::now());
      seen.push_back(said.ok() ? std::move(said).value() : std::string());
    }
    std::vector<int> late = unconfirmed(seen, view.value());
    std::erase(late, rank_);
    return late.empty() ? std::vector<int>{0} : late;
  }

  KeyValue& store_;
  const int rank_;
  const std::vector<int> ranks_;
  const std::string nonce_;
  const Deadline deadline_;
  Deadline next_warning_ = steady_clock::now() + kWarnAfter;
};

}  // namespace

Result<std::string> agreeOnEpoch(KeyValue& store, int rank, int size, Deadline deadline) {
  std::array<std::uint8_t, 8> random{};
  if (Error error = transport::fillRandom(random)) return error;
  return Agreement(store, rank, size, transport::toHex(random), deadline).run();
}

}  // namespace weft::collectives
