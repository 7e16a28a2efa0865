// The cells of one mini-batch: micro-batches times stages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "pipe/cell/micro_batch_cell.h"

namespace weft::pipe {

class CellGrid {
 public:
  explicit CellGrid(MiniBatchContext& context) : stages_(context.pipeline.stages.size()) {
    cells_.reserve(context.micro_batches * stages_);
    for (std::size_t i = 0; i < context.micro_batches; ++i) {
      for (std::size_t j = 0; j < stages_; ++j)
        cells_.emplace_back(context, CellIndex{i, j});
    }
  }
  MicroBatchCell& at(CellIndex index) { return cells_[placeOf(index)]; }
  const MicroBatchCell& at(CellIndex index) const { return cells_[placeOf(index)]; }
  bool any(CellState state) const {
    return std::any_of(cells_.begin(), cells_.end(),
                       [&](const MicroBatchCell& cell) { return cell.state() == state; });
  }

 private:
  std::size_t placeOf(CellIndex index) const { return index.micro_batch * stages_ + index.stage; }

  const std::size_t stages_;
  std::vector<MicroBatchCell> cells_;
};

}  // namespace weft::pipe
