#include "c10d_plugin/store/all_gather.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "c10d_plugin/core/ranks_text.h"
#include "transport/base/log.h"
#include "transport/base/parse_number.h"

namespace weft::collectives {

using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

namespace {

// In a larger group only the first rank warns: each that does so asks for all ranks.
constexpr std::size_t kAllWarn = 64;

std::string keyOf(const std::string& topic, int rank) { return topic + "/" + std::to_string(rank); }

// What `read` gets, once it is there; meanwhile names those who have said nothing.
template <typename Read>
auto awaitTopic(KeyValue& store, const std::string& topic, int rank, const std::vector<int>& ranks,
                Deadline deadline, const Read& read) -> decltype(read(deadline)) {
  while (true) {
    auto got = read(std::min(deadline, steady_clock::now() + kWarnAfter));
    if (got.ok() || got.error().code() != ErrorCode::kTimeout) return got;
    const bool late = steady_clock::now() >= deadline;
    if (!late && !mayWarn(rank, ranks)) continue;
    std::vector<int> silent = silentRanks(store, topic, ranks);
    if (late) {
      if (silent.empty()) silent = {ranks.front()};  // it collects what is said
      return notCome(silent);
    }
    warnOfSilence(store, rank, silent);
  }
}

}  // namespace

std::vector<std::string> topicKeys(const std::string& topic, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  keys.reserve(ranks.size());
  for (const int rank : ranks)
    keys.push_back(keyOf(topic, rank));
  return keys;
}

std::vector<int> silentRanks(KeyValue& store, const std::string& topic,
                             const std::vector<int>& ranks) {
  std::vector<int> silent;
  for (const int rank : ranks) {
    if (!store.get(keyOf(topic, rank), steady_clock::now()).ok()) silent.push_back(rank);
  }
  return silent;
}

bool mayWarn(int rank, const std::vector<int>& ranks) {
  return rank == ranks.front() || ranks.size() <= kAllWarn;
}

void warnOfSilence(const KeyValue& store, int rank, const std::vector<int>& silent) {
  if (silent.empty()) return;
  transport::log(transport::LogLevel::kWarning, store.title() + ": rank " + std::to_string(rank) +
                                                    " waits for " + ranksAsText(silent));
}

Error notCome(const std::vector<int>& ranks) {
  return {ErrorCode::kTimeout,
          "Timed out waiting for " + ranksAsText(ranks) +
              " to form the group (not started, cannot reach the Store, or started with another "
              "world_size or backend)"};
}

std::string joinTexts(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts)
    joined += std::to_string(text.size()) + ":" + text;
  return joined;
}

std::optional<std::vector<std::string>> splitTexts(const std::string& joined) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < joined.size();) {
    const std::size_t colon = joined.find(':', at);
    if (colon == std::string::npos) return std::nullopt;
    const auto size = transport::parseNumber<std::size_t>({joined.data() + at, colon - at});
    if (!size || *size > joined.size() - colon - 1) return std::nullopt;
    texts.push_back(joined.substr(colon + 1, *size));
    at = colon + 1 + *size;
  }
  return texts;
}

Result<std::vector<std::string>> storeAllGather(KeyValue& store, const std::string& topic,
                                                const std::string& value, int rank,
                                                const std::vector<int>& ranks, Deadline deadline) {
  if (Error failed = store.set(keyOf(topic, rank), value)) return failed;
  const std::string all = topic + "/all";
  if (rank == ranks.front()) {
    const auto keys = topicKeys(topic, ranks);
    auto said = awaitTopic(store, topic, rank, ranks, deadline,
                           [&](Deadline until) { return store.getAll(keys, until); });
    if (!said.ok()) return said;
    if (Error failed = store.set(all, joinTexts(said.value()))) return failed;
    return said;
  }
  const auto joined = awaitTopic(store, topic, rank, ranks, deadline,
                                 [&](Deadline until) { return store.get(all, until); });
  if (!joined.ok()) return joined.error();
  auto said = splitTexts(joined.value());
  if (!said || said->size() != ranks.size())
    return Error(ErrorCode::kProtocol, "what the ranks said about '" + topic + "' is malformed");
  return std::move(*said);
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
