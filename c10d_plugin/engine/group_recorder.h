// GroupRecorder: counts one group's operations, and says of each what it is: in the process's
// record (OpRecorder) while that is on, and for the error where the operation fails. OpRecorder
// keeps the GroupRecords; this makes one group's OpRecords.
//
// Threads: calls(), countCall(): any. The rest: any thread that may wait for the GIL, for they may
// walk the Python stack.
#pragma once

#include <atomic>
#include <cstdint>

#include "c10d_plugin/engine/op_recorder.h"
#include "c10d_plugin/engine/work.h"

namespace weft::process_group {

class GroupRecorder {
 public:
  explicit GroupRecorder(int rank) : rank_(rank) {}

  // Collectives so far.
  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  // Counts one more, and returns its number.
  std::uint64_t countCall() { return calls_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // In the process's record where that is on, else for its error only.
  TrackedOp track(const OpParams& params, const OpInfo& info, std::uint64_t sequence) const {
    return tracked(makeRecord(params, info, sequence));
  }
  // The same for one more message, which it counts. `peer`: the other rank; -1: any.
  TrackedOp recordMessage(const OpParams& params, c10d::OpType type, const at::Tensor& tensor,
                          int peer, int tag);
  // What the calling thread has called; `recorded` knows it where it was recorded.
  OpRecord ownCall(const TrackedOp& recorded, const OpParams& params, const OpInfo& info,
                   std::uint64_t sequence) const;

 private:
  static std::uint64_t nextId();
  static TrackedOp tracked(OpRecord made);
  OpRecord makeRecord(const OpParams& params, const OpInfo& info, std::uint64_t sequence) const;

  const int rank_;
  const std::uint64_t id_ = nextId();  // of the record's entries
  std::atomic<std::uint64_t> calls_{0}, messages_{0};
};

}  // namespace weft::process_group
