#include "c10d_plugin/cuda/device/staging.h"

#include "c10d_plugin/cuda/device/handles.h"

namespace weft::process_group {

namespace {

struct Said {
  std::int64_t bytes = 0;
  cudaIpcMemHandle_t memory{};
  SharedEvents::Handles filled{};
};

}  // namespace

Staging::Staging(c10::DeviceIndex device, std::size_t bytes, Meeting& meeting, const Step& step)
    : bytes_(bytes), rank_(meeting.rank()), ranks_(static_cast<std::size_t>(meeting.size())) {
  Rank& own = ranks_[static_cast<std::size_t>(rank_)];
  own.memory = std::make_unique<DeviceMemory>(device, 2 * bytes);
  own.filled = std::make_unique<SharedEvents>(device);
  const Said said{static_cast<std::int64_t>(bytes), own.memory->handle(), own.filled->handles()};
  const auto all = meeting.gather(asWords(said), step);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    const Said theirs = fromWords<Said>(all[rank]);
    TORCH_CHECK(theirs.bytes == said.bytes, step.title, ": rank ", rank,
                " has a staging buffer of ", 2 * theirs.bytes, " bytes, rank ", rank_, " one of ",
                2 * said.bytes, "; give all ranks the same staging_bytes");
    ranks_[rank].memory = std::make_unique<DeviceMemory>(device, 2 * bytes, theirs.memory);
    ranks_[rank].filled = std::make_unique<SharedEvents>(device, theirs.filled);
  }
}

at::Tensor Staging::half(int rank, c10::ScalarType type) const {
  return ranks_[static_cast<std::size_t>(rank)].memory->view(half_ * bytes_, bytes_, type);
}

void Staging::filled(const c10::cuda::CUDAStream& stream) {
  ranks_[static_cast<std::size_t>(rank_)].filled->record(half_, stream);
}

void Staging::beginReading(const c10::cuda::CUDAStream& stream) {
  for (const Rank& rank : ranks_)
    rank.filled->block(half_, stream);
}

}  // namespace weft::process_group
