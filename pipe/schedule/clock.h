// The order of a GPipe schedule (Huang et al. 2019; torchgpipe, Kim et al. 2020).
//
// m micro-batches pass n stages. In clock cycle k the cells (i, j) with i + j = k run, micro-batch
// i in stage j; a cycle has no dependency inside itself:
//
//   k   stage 0  stage 1  stage 2
//   0   (0,0)
//   1   (1,0)    (0,1)
//   2   (2,0)    (1,1)    (0,2)
//   3            (2,1)    (1,2)
//   4                     (2,2)
//
// Cycle by cycle, stage 0 first, is the schedule's order: the one in which random numbers are drawn
// and in which the first of several exceptions is found. The backward runs it from its end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace weft::pipe {

struct CellIndex {
  std::size_t micro_batch = 0;
  std::size_t stage = 0;
  bool operator==(const CellIndex&) const = default;
};

inline std::vector<CellIndex> clockOrder(std::size_t micro_batches, std::size_t stages) {
  std::vector<CellIndex> order;
  order.reserve(micro_batches * stages);
  for (std::size_t clock = 0; clock + 1 < micro_batches + stages; ++clock) {
    const std::size_t first = clock < micro_batches ? 0 : clock + 1 - micro_batches;
    const std::size_t end = std::min(clock + 1, stages);
    for (std::size_t stage = first; stage < end; ++stage)
      order.push_back({clock - stage, stage});
  }
  return order;
}

}  // namespace weft::pipe
