// Context: what the shared-memory operations of one rank work with, and the operation that runs.
//
// Operations consist of steps (segment/step_barrier.h): meet() ends a step, and returns when all
// ranks have ended it. An operation calls begin(), writes what the other ranks need, and meets; the
// first meeting compares what the ranks called. After the operation's last meeting the next
// operation may begin at once.
//
// Threads: the rank's operating thread only, but for awaited() and waited().
// Failure: an Error ends the operation. kInvalidArgument: the calls were impossible or differed,
// all ranks know, and the group goes on. Anything else: the group has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/op_fingerprint.h"
#include "c10d_plugin/shm/direct_data.h"
#include "c10d_plugin/shm/segment/heap.h"
#include "c10d_plugin/shm/segment/segment.h"
#include "c10d_plugin/shm/segment/step_barrier.h"

namespace weft::collectives::shm {

class Context {
 public:
  Context(std::shared_ptr<Segment> segment, int rank);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  Segment& segment() const noexcept { return *segment_; }
  Heap& heap() const noexcept { return *heap_; }

  // Begins an operation. Refuses a root that is no rank, and data that cannot be reduced.
  Error begin(const Call& call, Operation operation, std::size_t bytes, int root = -1);
  // Ends the step.
  Error meet();
  // Instead of the operation, if this rank's arguments are impossible. The other ranks' operation
  // fails, too.
  Error refuse(const std::string& why);

  const OpFingerprint& op() const noexcept { return record_.op; }
  // The number of the step that runs, and of the buffers into which this rank writes.
  std::uint64_t step() const noexcept { return steps_.number(); }
  // As Collectives::awaited(); any thread.
  std::vector<int> awaited() const { return steps_.awaited(); }
  std::vector<double> waited() const { return steps_.waitTimes().seconds(); }
  // The data of the operation that are used where they are.
  DirectData& direct() noexcept { return direct_; }

  // Before the first meeting: tells the others the sizes of this rank's parts.
  template <typename Part>
  void publishSizes(SizeTable table, std::span<const Part> parts, bool equal_on_all) {
    std::uint64_t* const sizes = segment_->sizes(rank_, parity_, table);
    for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) {
      sizes[i] = i < parts.size() ? parts[i].size() : 0;
      if (equal_on_all) record_.sizes.add(sizes[i]);
    }
  }
  // In the step after the first meeting: a size that another rank has told.
  std::size_t sizeFrom(int rank, SizeTable table, int index) const {
    return static_cast<std::size_t>(segment_->sizes(rank, parity_, table)[index]);
  }

  // Makes sure that this rank's large buffers have memory. An error has ended the group.
  Error obtainBuffers();

  // Kept between operations for their memory.
  struct Scratch {
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> addresses;
    std::vector<ConstBytes> parts;
    std::vector<std::size_t> sizes;
  };
  Scratch& scratch() noexcept { return scratch_; }

 private:
  // Compares what the ranks called, side by side, between the first meeting and the second
  // (compare_calls.cpp). Every rank compares the same records in the same way, so all come to the
  // same verdict and text: kInvalidArgument names two ranks that differ, and how.
  Error compareCalls() const;

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<Heap> heap_;
  const int rank_;
  const int size_;
  StepBarrier steps_;
  DirectData direct_;
  bool have_buffers_ = false;
  Scratch scratch_;

  // The operation that runs.
  CallRecord record_;
  Deadline deadline_;
  bool compared_ = false;
  unsigned parity_ = 0;  // of the step in which it began
};

}  // namespace weft::collectives::shm
