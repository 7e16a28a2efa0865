#include "c10d_plugin/store/all_gather.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "c10d_plugin/core/ranks_text.h"
#include "transport/base/log.h"

namespace weft::collectives {

using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

namespace {

constexpr std::chrono::seconds kWarnAfter{10};

std::string keyOf(const std::string& topic, int rank) { return topic + "/" + std::to_string(rank); }

// The ranks from `from` on whose value is not there yet.
std::vector<int> missing(KeyValue& store, const std::string& topic, const std::vector<int>& ranks,
                         std::size_t from) {
  std::vector<int> absent;
  for (std::size_t i = from; i < ranks.size(); ++i) {
    if (!store.get(keyOf(topic, ranks[i]), steady_clock::now()).ok()) absent.push_back(ranks[i]);
  }
  return absent;
}

}  // namespace

Result<std::vector<std::string>> storeAllGather(KeyValue& store, const std::string& topic,
                                                const std::string& value, int rank,
                                                const std::vector<int>& ranks, Deadline deadline) {
  if (Error failed = store.set(keyOf(topic, rank), value)) return failed;
  std::vector<std::string> said;
  auto warn_at = steady_clock::now() + kWarnAfter;
  while (said.size() < ranks.size()) {
    auto got = store.get(keyOf(topic, ranks[said.size()]), std::min(deadline, warn_at));
    if (got.ok()) {
      said.push_back(std::move(got).value());
      continue;
    }
    if (got.error().code() != ErrorCode::kTimeout) return got.error();
    const std::vector<int> absent = missing(store, topic, ranks, said.size());
    if (steady_clock::now() >= deadline) {
      return Error(ErrorCode::kTimeout,
                   "Timed out waiting for " + ranksAsText(absent) + " to form the group");
    }
    if (!absent.empty()) {
      transport::log(transport::LogLevel::kWarning, "process group: rank " + std::to_string(rank) +
                                                        " is waiting for " + ranksAsText(absent));
    }
    warn_at = steady_clock::now() + kWarnAfter;
  }
  return said;
}

Result<std::string> firstProblem(KeyValue& store, const std::string& topic, const Error& own,
                                 int rank, const std::vector<int>& ranks, Deadline deadline) {
  // An empty text says that all is well.
  const std::string text = own && own.text().empty() ? "failed without a reason" : own.text();
  const auto said = storeAllGather(store, topic, text, rank, ranks, deadline);
  if (!said.ok()) return said.error();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string& problem = said.value()[i];
    if (!problem.empty()) return "rank " + std::to_string(ranks[i]) + ": " + problem;
  }
  return std::string();
}

}  // namespace weft::collectives
