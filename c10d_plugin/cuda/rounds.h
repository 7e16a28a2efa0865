// Rounds: carries out collectives on a device, chunk by chunk, through the Staging.
//
// In a round each rank puts a piece of its input into its own half, all ranks meet, and each takes
// what it needs out of all halves. The first meeting also compares what the ranks have called.
//
// Threads: one operation at a time, with the group's stream as the current one; returns when all
// is queued. Failure: run() throws. Different calls throw on all ranks and leave the group usable;
// so does what goes wrong on one rank while it puts its piece. Ranks that stay away or die, and
// what else goes wrong on one rank between the meetings, end the group.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "c10d_plugin/cuda/device/meeting.h"
#include "c10d_plugin/cuda/device/staging.h"

namespace weft::process_group {

inline constexpr std::int64_t kAnySize = -1;

// The piece of the tensors that a round moves, in elements.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t size = 0;  // at most
  int phase = 0;

  // What a contiguous tensor of one dimension has of it; may be empty.
  at::Tensor of(const at::Tensor& tensor) const;
};

struct DeviceOp {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;
  c10::ScalarType element = c10::ScalarType::Byte;
  std::int64_t reduction = -1;
  int root = -1;
  int phases = 1;
  int shares = 1;                   // pieces that are side by side in a half
  std::vector<std::int64_t> gives;  // elements for each rank
  std::vector<std::int64_t> wants;  // elements from each rank; kAnySize: not compared
  // half(rank, share, size): where a piece is; `put` gets its own rank's, whatever it asks for.
  using Half = std::function<at::Tensor(int rank, int share, std::int64_t size)>;
  std::function<void(const Piece&, const Half&)> put, take;  // empty: nothing
};

class Rounds {
 public:
  Rounds(Meeting& meeting, Staging& staging) : meeting_(meeting), staging_(staging) {}

  void run(const DeviceOp& op, const Step& step, const c10::cuda::CUDAStream& stream);

 private:
  void runRounds(const DeviceOp& op, const Step& step, const c10::cuda::CUDAStream& stream);
  // Fills, meets and reads; returns what the ranks say.
  std::vector<Words> round(const DeviceOp& op, const Piece& piece, Words words, const Step& step,
                           const c10::cuda::CUDAStream& stream);

  Meeting& meeting_;
  Staging& staging_;
  std::int64_t operations_ = 0;
  std::int64_t pieces_ = 0;     // of the running operation
  std::exception_ptr problem_;  // of this rank, in the running operation
};

}  // namespace weft::process_group
