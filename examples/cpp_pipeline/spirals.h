// Two spirals, one in the other: points in the plane that no straight line tells apart (Lang and
// Witbrock, 1988).
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace spirals {

struct Points {
  torch::Tensor where;   // [count, 2], within the unit circle
  torch::Tensor second;  // [count, 1], 1 for the second spiral's
};

inline Points points(std::int64_t count) {
  const torch::Tensor second = torch::randint(2, {count, 1}).to(torch::kFloat);
  const torch::Tensor turn = torch::rand({count, 1}).sqrt();  // along the spiral
  const torch::Tensor angle = turn * 7.0 + second * 3.14159265;
  const torch::Tensor on = torch::cat({angle.cos(), angle.sin()}, 1) * turn;
  return {on + 0.01 * torch::randn({count, 2}), second};
}

}  // namespace spirals
