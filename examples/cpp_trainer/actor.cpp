// A C++ actor: lives in the environment, asks the Python learner's policy what to do, and sends it
// each episode to learn from. The learner is learner.py.
//
//   actor [EPISODES]        (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE as usual)
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <vector>

#include "examples/cpp_trainer/corridor.h"
#include "jit_ops/weft.h"

namespace {

// Plays one episode and lets the learner learn from it. Returns the sum of its rewards.
double episode() {
  Corridor world;
  std::vector<at::Tensor> seen;
  std::vector<std::int64_t> actions;
  std::vector<double> rewards;
  while (!world.done()) {
    seen.push_back(at::tensor(world.observation()));
    const auto action =
        weft::rpcSync<std::int64_t>("learner", "policy", {seen.back()}, {.method = "act"});
    actions.push_back(action);
    rewards.push_back(world.step(static_cast<int>(action)));
  }
  weft::rpcSync<double>("learner", "learn",
                        {at::stack(seen), at::tensor(actions), at::tensor(rewards)});
  return std::accumulate(rewards.begin(), rewards.end(), 0.0);
}

double mean(const std::vector<double>& values, std::size_t from, std::size_t to) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(from),
                         values.begin() + static_cast<std::ptrdiff_t>(to), 0.0) /
         static_cast<double>(to - from);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::size_t episodes = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 200;
    weft::JoinOptions options;
    options.name = "actor";
    const auto group = weft::Group::join(options);
    std::vector<double> returns;
    for (std::size_t i = 0; i < episodes; ++i)
      returns.push_back(episode());
    group->shutdown();
    const std::size_t part = episodes / 10 + 1;
    std::printf("mean return of the first %zu episodes %.2f, of the last %.2f\n", part,
                mean(returns, 0, part), mean(returns, episodes - part, episodes));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "actor: %s\n", error.what());
    return 1;
  }
  return 0;
}
