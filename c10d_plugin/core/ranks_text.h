// Ranks as errors and log lines name them.
#pragma once

#include <string>
#include <vector>

namespace weft::collectives {

// "rank 3" or "ranks 3, 5".
inline std::string ranksAsText(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace weft::collectives
