// OpContext: what a running operation uses: the Collectives, and the Call for each of their
// operations. It also knows whether this rank has done all of these that the other ranks do. If an
// exception ends the operation before that, this rank's next operation would meet the one for which
// the others still wait.
//
// Threads: the one that runs the operation. Ownership: it borrows all it is given.
#pragma once

#include <atomic>
#include <cstdint>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/engine/op_error.h"

namespace weft::process_group {

class OpContext {
 public:
  OpContext(collectives::Collectives& collectives, transport::Deadline deadline,
            std::uint64_t& sequence, const char* title, std::atomic<bool>& failed)
      : collectives_(collectives),
        deadline_(deadline),
        sequence_(sequence),
        title_(title),
        failed_(failed),
        had_failed_(failed.load(std::memory_order_relaxed)) {}

  collectives::Collectives& collectives() const { return collectives_; }
  // A new one for each operation of the Collectives.
  collectives::Call nextCall(collectives::Element element = collectives::Element::kBytes,
                             collectives::Reduction reduction = collectives::Reduction::kSum,
                             std::uint8_t variant = 0) {
    return {.deadline = deadline_,
            .sequence = sequence_++,
            .element = element,
            .reduction = reduction,
            .variant = variant};
  }
  // Call it with the result of each operation of the Collectives. Throws if that is an error, which
  // ends the group unless it only says that the ranks called different operations and the
  // Collectives outlive that.
  void check(const transport::Error& error) {
    if (!error) {
      if (progress_ == Progress::kBehind) progress_ = Progress::kDone;
      return;
    }
    const bool differed = error.code() == transport::ErrorCode::kInvalidArgument;
    progress_ = differed ? Progress::kDiffered : Progress::kFailed;
    if (!differed || !collectives_.outlivesDifferentCalls()) failed_.store(true);
    throwAsTorch(title_, error);
  }
  // An operation is one of the Collectives', or, between these two, a series of them. What comes
  // before a series must fail on all ranks or on none.
  void beginSeries() noexcept { progress_ = Progress::kInSeries; }
  void endSeries() noexcept { progress_ = Progress::kDone; }
  // After an exception: whether the other ranks do more of the operation than this rank has done,
  // and have not been told.
  bool leftBehind() const noexcept {
    return progress_ == Progress::kBehind || progress_ == Progress::kInSeries;
  }
  const char* title() const noexcept { return title_; }
  // Whether check() threw because the ranks called different operations, this one among them: in a
  // group that had ended before, the error is that of an earlier one.
  bool differed() const noexcept { return progress_ == Progress::kDiffered && !had_failed_; }

 private:
  enum class Progress : std::uint8_t {
    kBehind,    // the other ranks do more of the operation
    kInSeries,  // likewise, until the series ends
    kDone,      // this rank has done what the others do
    kFailed,    // check() threw: the Collectives know of the error
    kDiffered,  // likewise, because the ranks called different operations
  };

  collectives::Collectives& collectives_;
  transport::Deadline deadline_;
  std::uint64_t& sequence_;
  const char* title_;
  std::atomic<bool>& failed_;
  const bool had_failed_;  // before this operation
  Progress progress_ = Progress::kBehind;
};

}  // namespace weft::process_group
