#include "c10d_plugin/engine/mismatch.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/store/all_gather.h"

namespace weft::process_group {

namespace {

// For all together: ranks find a difference at the same moment, so one that says nothing so long is
// stopped, or cannot run.
constexpr std::chrono::milliseconds kPatience{6000};

}  // namespace

std::string exchangeCalls(collectives::KeyValue& store, int rank, int size, std::uint64_t number,
                          const std::string& own) {
  const auto keys =
      collectives::topicKeys("called/" + std::to_string(number), collectives::allRanks(size));
  std::map<std::string, std::vector<int>> ranks_by_text{{own, {rank}}};
  std::vector<int> silent;
  const auto deadline = collectives::Deadline::clock::now() + kPatience;
  if (!store.set(keys[static_cast<std::size_t>(rank)], own)) {
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      const auto text = store.get(keys[static_cast<std::size_t>(other)], deadline);
      if (text.ok()) {
        ranks_by_text[text.value()].push_back(other);
      } else {
        silent.push_back(other);
      }
    }
  }
  std::map<std::vector<int>, std::string> text_by_ranks;  // the lowest rank first
  for (auto& [text, ranks] : ranks_by_text) {
    std::ranges::sort(ranks);
    text_by_ranks[ranks] = text;
  }
  std::string all;
  for (const auto& [ranks, text] : text_by_ranks)
    all += (all.empty() ? "" : "; ") + collectives::ranksAsText(ranks) + ": " + text;
  if (silent.empty()) return all;
  return all + "; " + collectives::ranksAsText(silent) +
         (silent.size() == 1 ? " does not answer" : " do not answer");
}

}  // namespace weft::process_group
