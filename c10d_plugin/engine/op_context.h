// OpContext: what a running operation uses: the Collectives, and the Call for each of their
// operations. It also knows whether this rank has done all of these that the others do: where an
// exception ends the operation before, what this rank calls next would meet what the others still
// wait for.
//
// Threads: the one that runs the operation. Ownership: the engine's, which outlives it.
#pragma once

#include <atomic>
#include <cstdint>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/engine/call_text.h"

namespace weft::process_group {

class OpContext {
 public:
  OpContext(collectives::Collectives& collectives, collectives::Deadline deadline,
            std::uint64_t& sequence, const char* title, std::atomic<bool>& failed)
      : collectives_(collectives),
        deadline_(deadline),
        sequence_(sequence),
        title_(title),
        failed_(failed) {}

  collectives::Collectives* operator->() const { return &collectives_; }
  // A new one for each operation of the Collectives.
  collectives::Call call(collectives::Element element = collectives::Element::kBytes,
                         collectives::Reduction reduction = collectives::Reduction::kSum,
                         std::uint8_t variant = 0) const {
    return {deadline_, sequence_++, element, reduction, variant};
  }
  // Throws the error, if it is one. It ends the group, unless it only says that the ranks called
  // different operations.
  void check(const transport::Error& error) {
    if (state_ != State::kInSeries) state_ = error ? State::kBehind : State::kInStep;
    if (!error) return;
    reported_ = true;
    differed_ = error.code() == transport::ErrorCode::kInvalidArgument;
    if (!differed_) failed_.store(true);
    raise(title_, error);
  }
  // Between the two the operation is several of the Collectives'; else it is one.
  void beginSeries() noexcept { state_ = State::kInSeries; }
  void endSeries() noexcept { state_ = State::kInStep; }
  // After an exception: the others do more of the operation than this rank has done, and have not
  // been told.
  bool leftBehind() const noexcept { return state_ != State::kInStep && !reported_; }
  const char* title() const noexcept { return title_; }
  // What check() threw says that the ranks called different operations.
  bool differed() const noexcept { return differed_; }

 private:
  // What this rank has done of the operation: nothing yet, some of a series, or all.
  enum class State : std::uint8_t { kBehind, kInSeries, kInStep };

  collectives::Collectives& collectives_;
  collectives::Deadline deadline_;
  std::uint64_t& sequence_;
  const char* title_;
  std::atomic<bool>& failed_;
  State state_ = State::kBehind;
  bool reported_ = false;  // check() threw: the Collectives know of the error
  bool differed_ = false;
};

}  // namespace weft::process_group
