// StaticMeeting: how the workers of a group of fixed size find each other through the Store, which
// Membership describes with its keys.
//
// Each worker posts its record. Rank 0 waits until all have seen its own, compares each with itself
// and posts the list; the others compare themselves with rank 0 and wait for the outcome. So each
// worker but rank 0 exchanges as many messages with the Store in a large group as in a small one.
//
// The Store may remember former lives: of a worker that ended while others waited, or of all. In
// one meeting a rank has one record, until the group has formed. A worker that finds the record of
// a former life, which is dead, ends the meeting, and all who wait go on to the next one. In a
// group that has formed it takes the former's place, as long as another worker lives.
//
// Threads: one. Every wait is bounded by `timeout`, and tells every 5 s whom it waits for.
// Failure: as Membership. What ends the meeting is its outcome, which all workers throw.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rpc_backend/join/member_record.h"

namespace weft::rpc {

class StaticMeeting {
 public:
  // `self`: this worker's record, which others can read (checkReadable); it outlives the meeting.
  StaticMeeting(c10::intrusive_ptr<c10d::Store> store, const MemberRecord& self,
                milliseconds timeout)
      : root_(std::move(store)), self_(self), text_(self.toText()), timeout_(timeout) {}

  // Once. Returns the others.
  std::vector<MemberRecord> run();
  // Then: the keys of the meeting in which the group has formed, and whether it had formed already.
  c10::intrusive_ptr<c10d::Store> store() const { return store_; }
  bool wasRestarted() const noexcept { return was_restarted_; }

 private:
  using Members = std::vector<MemberRecord>;

  void choose(int meeting);
  // The members of the group that this meeting forms or has formed; none: it is over. `is_first`:
  // this worker has not been in the meeting before this one.
  std::optional<Members> attend(bool is_first);
  // Rank 0; the others.
  std::optional<Members> collect();
  std::optional<Members> follow();
  // Throws if the worker that has this one's rank lives.
  void refuseIfAlive(const std::string& holder, const std::string& outcome, bool is_first);
  // Of a group that has formed. Nothing: another process has this rank meanwhile, or it is over.
  std::optional<Members> rejoin(const std::string& holder);
  bool anotherLives();
  Members readFormed();

  // "": none yet.
  std::string outcome();
  // How the meeting ended; `end` unless it has ended already.
  std::string endWith(const std::string& end);
  // The records of `ranks`. What does not fit this worker ends the meeting, and throws.
  Members readAndCheck(const std::vector<std::int32_t>& ranks);
  // Whether this is a rank 0 that died while it waited for another number of workers. Its successor
  // ends the meeting.
  bool isLeftBehind(const MemberRecord& first);
  // Waits until all `keys` are there, for which all of `ranks` must come. False: it is over.
  bool waitFor(const std::vector<std::string>& keys, const std::vector<std::int32_t>& ranks);
  std::vector<std::int32_t> otherRanks() const;
  std::string me() const;

  const c10::intrusive_ptr<c10d::Store> root_;
  c10::intrusive_ptr<c10d::Store> store_;  // of the meeting
  const MemberRecord& self_;
  const std::string text_;  // of self_
  const milliseconds timeout_;
  bool was_restarted_ = false;
  const std::chrono::steady_clock::time_point waiting_since_ = std::chrono::steady_clock::now();
};

}  // namespace weft::rpc
