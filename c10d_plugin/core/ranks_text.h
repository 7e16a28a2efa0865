// Ranks as errors and log lines name them.
#pragma once

#include <numeric>
#include <string>
#include <vector>

namespace weft::collectives {

// 0, 1, … size - 1.
inline std::vector<int> allRanks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// "rank 3" or "ranks 3, 5".
inline std::string ranksAsText(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

// What a rank tells the others when Ctrl-C has ended it `in` the middle of something.
inline std::string interruptedText(int rank, const std::string& in) {
  return "rank " + std::to_string(rank) + " was interrupted (Ctrl-C) while " + in;
}

}  // namespace weft::collectives
