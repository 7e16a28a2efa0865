#include "c10d_plugin/join/store_all_gather.h"

#include <algorithm>
#include <utility>

#include "c10d_plugin/core/ranks_text.h"
#include "transport/base/log.h"

namespace weft::collectives {

using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

namespace {

// The ranks whose value is not there yet.
std::vector<int> missing(KeyValue& store, const std::string& topic, const std::vector<bool>& have) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < have.size(); ++rank) {
    if (have[rank]) continue;
    if (store.get(topic + std::to_string(rank), steady_clock::now()).ok()) continue;
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace

Result<std::vector<std::string>> storeAllGather(KeyValue& store, const std::string& topic,
                                                const std::string& value, int rank, int size,
                                                steady_clock::time_point deadline) {
  constexpr std::chrono::seconds kPatience{10};  // then the missing are named, once
  const std::string prefix = topic + "/";
  if (Error failed = store.set(prefix + std::to_string(rank), value)) return failed;
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::vector<bool> have(said.size(), false);
  auto next_remark = steady_clock::now() + kPatience;
  for (std::size_t other = 0; other < said.size(); ++other) {
    while (!have[other]) {
      auto got = store.get(prefix + std::to_string(other), std::min(deadline, next_remark));
      if (got.ok()) {
        said[other] = std::move(got).value();
        have[other] = true;
        break;
      }
      if (got.error().code() != ErrorCode::kTimeout) return got.error();
      const std::vector<int> absent = missing(store, prefix, have);
      if (steady_clock::now() >= deadline) {
        return Error(ErrorCode::kTimeout,
                     "Timed out waiting for " + ranksAsText(absent) + " to form the group");
      }
      if (!absent.empty()) {
        transport::log(transport::LogLevel::kWarning, "process group: rank " +
                                                          std::to_string(rank) +
                                                          " is waiting for " + ranksAsText(absent));
      }
      next_remark = steady_clock::now() + kPatience;
    }
  }
  return said;
}

}  // namespace weft::collectives
