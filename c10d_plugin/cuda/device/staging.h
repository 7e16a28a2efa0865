// Staging: a buffer of device memory per rank that all ranks of a group have mapped, in two halves.
//
// The ranks go through it in rounds, and a round uses one half: each rank fills its own, all meet
// on the host, each waits on its stream until all have filled theirs, and reads what it needs.
//
// The rounds alternate between the halves, so no other wait is needed: a rank fills a half again
// two rounds later. In the round between, it has waited until all others have filled their other
// half, which they do on the same stream after they have read the first one. So every rank must
// wait in every round, also in one that fails.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "c10d_plugin/cuda/device/device_memory.h"
#include "c10d_plugin/cuda/device/meeting.h"

namespace weft::process_group {

class Staging {
 public:
  // Called by all ranks; each half has `bytes`.
  Staging(c10::DeviceIndex device, std::size_t bytes, Meeting& meeting, const Step& step);

  std::size_t bytes() const { return bytes_; }
  // A rank's half of this round as elements of a type.
  at::Tensor half(int rank, c10::ScalarType type) const;

  // The steps of a round, in this order; the ranks meet between the first and the second.
  void filled(const c10::cuda::CUDAStream& stream);
  void beginReading(const c10::cuda::CUDAStream& stream);
  void endReading() { half_ = 1 - half_; }  // the next round begins

 private:
  struct Rank {
    std::unique_ptr<DeviceMemory> memory;
    std::unique_ptr<SharedEvents> filled;
  };

  const std::size_t bytes_;
  const int rank_;
  std::vector<Rank> ranks_;
  std::size_t half_ = 0;
};

}  // namespace weft::process_group
