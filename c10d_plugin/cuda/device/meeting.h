// Meeting: where the ranks tell each other on the host what they have asked of the device. A wait
// for another rank's event waits for the event's last record. So each rank asks for its record
// before the ranks meet, and for its wait afterwards: then the last record is the right one.
//
// Runs on a group for CPU tensors of its own, which finds ranks that died or stay away.
//
// Threads: gather() one at a time; the others any. Failure: throws c10::DistBackendError
// "<title>: <why>" that names the rank, and marks the GroupState.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c10d_plugin/cuda/device/group_state.h"

namespace weft::process_group {

using Words = std::vector<std::int64_t>;

// What a step of an operation may use: its name and its time limit.
struct Step {
  const char* title = nullptr;
  std::chrono::steady_clock::time_point deadline;
};

class Meeting {
 public:
  explicit Meeting(c10::intrusive_ptr<c10d::Backend> group) : group_(std::move(group)) {}

  const std::shared_ptr<GroupState>& state() const { return state_; }
  int rank() const { return group_->getRank(); }
  int size() const { return group_->getSize(); }

  // What every rank says, by rank; all say as many words.
  std::vector<Words> gather(const Words& own, const Step& step);
  // Messages between two ranks, in order for each tag.
  void send(int to, int tag, const Words& words, const Step& step);
  Words receive(int from, int tag, std::size_t count, const Step& step);

  // Marks the state as soon as another rank dies or leaves, also while nothing waits for it.
  void watch();
  // Ends the group for this reason; the others learn that this rank aborted it.
  void fail(const std::string& why);
  // The same where `what` threw, so that this rank's next operation does not meet what the others
  // still wait for. Nothing where the group has ended already, which they know.
  void breakOff(const std::string& what);
  void abort() { group_->abort(); }
  void shutdown() { group_->shutdown(); }

 private:
  template <typename Function>
  void guarded(const Step& step, Function&& function);

  const c10::intrusive_ptr<c10d::Backend> group_;
  const std::shared_ptr<GroupState> state_ = std::make_shared<GroupState>();
};

}  // namespace weft::process_group
