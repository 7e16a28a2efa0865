// A worker of pipelines without Python: takes scripted stages from a driver in Python, and trains
// them. The driver is train.py.
//
//   worker NAME        (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE as usual)
#include <cstdio>
#include <exception>

#include "jit_ops/weft.h"

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: worker NAME");
    weft::servePipelines();
    const auto group = weft::Group::join({.name = argv[1]});
    group->shutdown();  // when the driver does; serves until then
  } catch (const std::exception& error) {
    std::fprintf(stderr, "worker: %s\n", error.what());
    return 1;
  }
  return 0;
}
