// OpContext: what a running operation uses: the Collectives, and the Call for each of their
// operations.
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
                         collectives::Reduction reduction = collectives::Reduction::kSum) const {
    return {deadline_, sequence_++, element, reduction};
  }
  // Throws the error, if it is one. It ends the group, unless it only says that the ranks called
  // different operations.
  void check(const transport::Error& error) {
    if (!error) return;
    differed_ = error.code() == transport::ErrorCode::kInvalidArgument;
    if (!differed_) failed_.store(true);
    raise(title_, error);
  }
  // What check() threw says that the ranks called different operations.
  bool differed() const noexcept { return differed_; }

 private:
  collectives::Collectives& collectives_;
  collectives::Deadline deadline_;
  std::uint64_t& sequence_;
  const char* title_;
  std::atomic<bool>& failed_;
  bool differed_ = false;
};

}  // namespace weft::process_group
