#include "c10d_plugin/store/epoch.h"

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/store/all_gather.h"
#include "transport/base/interruption.h"
#include "transport/base/secure_random.h"

namespace weft::collectives {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

namespace {

// The ranks with another view: they have not come yet, or have not seen all others.
std::vector<int> differing(const std::vector<std::string>& views, const std::string& view) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < views.size(); ++rank) {
    if (views[rank] != view) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace

Result<std::string> agreeOnEpoch(KeyValue& store, int rank, int size, Deadline deadline) {
  constexpr milliseconds kLongestNap{50};
  std::array<std::uint8_t, 8> random{};
  if (Error error = transport::fillRandom(random)) return error;
  const std::string own = transport::toHex(random);
  const std::vector<int> ranks = allRanks(size);
  for (milliseconds nap{1};; nap = std::min(nap * 2, kLongestNap)) {
    const auto nonces = storeAllGather(store, "epoch", own, rank, ranks, deadline);
    if (!nonces.ok()) return nonces.error();
    std::string view;
    for (const std::string& nonce : nonces.value())
      view += nonce.substr(0, own.size());
    const auto views = storeAllGather(store, "view", view, rank, ranks, deadline);
    if (!views.ok()) return views.error();
    const std::vector<int> others = differing(views.value(), view);
    if (others.empty()) return view.substr(0, own.size());
    if (steady_clock::now() >= deadline) {
      return Error(ErrorCode::kTimeout,
                   "Timed out waiting for " + ranksAsText(others) + " to form the group");
    }
    if (transport::interrupted()) {
      return Error(ErrorCode::kInterrupted, "forming the group was interrupted (Ctrl-C)");
    }
    std::this_thread::sleep_for(nap);
  }
}

}  // namespace weft::collectives
