// The environment: a corridor of cells. The actor starts in the middle; the right end is the goal
// (+1), the left end a pit (-1). Each step costs 0.01; after 40 steps the episode ends.
#pragma once

#include <vector>

class Corridor {
 public:
  static constexpr int kCells = 9;
  static constexpr int kMaxSteps = 40;

  bool done() const { return cell_ == 0 || cell_ == kCells - 1 || steps_ == kMaxSteps; }

  // One number per cell: 1 where the actor is.
  std::vector<float> observation() const {
    std::vector<float> seen(kCells, 0.0F);
    seen[cell_] = 1.0F;
    return seen;
  }

  // Action 0 goes left, 1 right. Returns the reward.
  double step(int action) {
    cell_ += action == 1 ? 1 : -1;
    ++steps_;
    if (cell_ == kCells - 1) return 1.0;
    if (cell_ == 0) return -1.0;
    return -0.01;
  }

 private:
  int cell_ = kCells / 2;
  int steps_ = 0;
};
