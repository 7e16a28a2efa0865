// Ranks as errors and log lines name them.
#pragma once

#include <string>
#include <vector>

namespace weft::collectives {

// "rank 3" or "ranks 3, 5".
std::string ranksAsText(const std::vector<int>& ranks);

}  // namespace weft::collectives
