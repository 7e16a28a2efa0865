// StaticMeeting: how the workers of a group of fixed size find each other through the Store, which
// Membership describes with its keys.
//
// Each worker posts its record. Rank 0 waits for all, compares each with itself and posts the list;
// the others compare themselves with rank 0 and wait for the outcome. So each worker but rank 0
// exchanges as many messages with the Store in a large group as in a small one.
//
// Threads: one. Every wait is bounded by `timeout`, and tells every 5 s whom it waits for.
// Failure: as Membership. What ends the meeting is its outcome, which all workers throw.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "rpc_backend/join/member_record.h"

namespace weft::rpc {

class StaticMeeting {
 public:
  // Both outlive it. `self`: this worker's record, which others can read (checkReadable).
  StaticMeeting(c10d::Store& store, const MemberRecord& self, milliseconds timeout)
      : store_(store), self_(self), timeout_(timeout) {}

  bool hasFormed();
  // Each of these, once, returns the others. The group runs, and this worker was started again:
  std::vector<MemberRecord> rejoin();
  // It has not formed:
  std::vector<MemberRecord> form();
  // Ends the meeting: another worker has this rank.
  [[noreturn]] void rejectDuplicate();

 private:
  // How the meeting ended; `end` unless it has ended already.
  std::string endWith(const std::string& end);
  // Rank 0; the others.
  std::vector<MemberRecord> collect();
  std::vector<MemberRecord> follow();
  // The records of `ranks`. What does not fit this worker ends the meeting, and throws.
  std::vector<MemberRecord> readAndCheck(const std::vector<std::int32_t>& ranks);
  // Waits until all `keys` are there, for which all of `ranks` must come.
  void waitFor(const std::vector<std::string>& keys, const std::vector<std::int32_t>& ranks);
  std::vector<std::int32_t> otherRanks() const;
  std::string me() const;

  c10d::Store& store_;
  const MemberRecord& self_;
  const milliseconds timeout_;
  std::chrono::steady_clock::time_point waiting_since_;  // for the others, in form()
};

}  // namespace weft::rpc
