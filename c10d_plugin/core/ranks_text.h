// Ranks and groups as errors and log lines name them.
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

// "process group 'half'". torch names the default group "0", which its users never see.
inline std::string groupText(const std::string& name) {
  if (name.empty()) return "a process group without a name";
  return name == "0" ? "the default process group" : "process group '" + name + "'";
}

// What has ended a wait on the main thread: the handler of any signal, if it raises something.
inline constexpr const char* kInterrupted = "interrupted (by Ctrl-C or another signal)";

// What a rank tells the others when a signal has ended it `in` the middle of something.
inline std::string interruptedText(int rank, const std::string& in) {
  return "rank " + std::to_string(rank) + " was " + kInterrupted + " while " + in;
}

}  // namespace weft::collectives
