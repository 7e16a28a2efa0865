// Membership: how workers find each other through the c10d Store: the group's key, who is in it,
// and where. StaticMeeting does it for a group of fixed size; the list of a dynamic one is here.
//
// Threads: the one that creates or shuts down an agent. Every wait is bounded by the Store's
// timeout, and tells every 5 s whom it waits for.
//
// Keys (under "weft/"): `secret` (group id and key, by rank 0 or the first to come), `kind` (static
// or dynamic), `members` (the records of all).
// A static group: `member/R` (MemberRecord), which rank 0 collects into `members`; `ready/R` (that
// rank has seen rank 0's record); `outcome` ("formed", or why it can't form: the first that is
// written stays, or "over" follows), `barriers` (how many it has passed). The next meeting, when
// one is over, has these under "again/1/", and so on. A dynamic group: `claim/R` (a counter of the
// lives of that rank); whoever changes `members` puts a new list in place of the one that it has
// read, or tries again.
//
// Failure: c10::Error; c10::DistNetworkError when the Store's server has ended (throwServerGone).
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <string>
#include <vector>

#include "rpc_backend/join/member_record.h"
#include "transport/auth/auth_key.h"

namespace weft::rpc {

class Membership {
 public:
  // `world` 0: a dynamic group, which workers join and leave.
  Membership(c10::intrusive_ptr<c10d::Store> store, std::string name, std::int32_t rank, int world);

  // All workers get the same from the Store, whoever of them comes first. The key is that of
  // `key_file` when one is named.
  transport::GroupSecret secret(const std::string& key_file);

  // Static groups: posts `self` and waits for all. Each compares itself with rank 0, which checks
  // all. What does not fit (duplicate names, versions, world_size) throws on every worker. A group
  // that has formed already takes a worker that died back under its rank and name; if nobody of it
  // lives, another one forms.
  std::vector<MemberRecord> meet(const MemberRecord& self);

  // Whether this rank had a former life, which is dead or has left.
  bool wasRestarted() const noexcept { return was_restarted_; }

  // Dynamic groups: adds `self`, in the place of a dead worker of its rank or name, and returns who
  // was there before.
  std::vector<MemberRecord> join(const MemberRecord& self);
  // Undoes join(), which may have failed. `address`: of `self`.
  void withdraw(const std::string& address);
  // Removes a member that leaves, or died without leaving. Its successor, which has the same rank
  // and another address, stays.
  void forget(std::int32_t rank, const std::string& address);
  // Adds a member that was forgotten and lives, unless it has a successor, or is this worker and
  // leaves. Returns the list.
  std::vector<MemberRecord> restore(const MemberRecord& member);

  milliseconds timeout() const noexcept { return timeout_; }
  c10::intrusive_ptr<c10d::Store> store() const { return store_; }

 private:
  void agreeOnKind();
  // `change` takes the list of a dynamic group and changes it; it may be called again.
  template <typename Change>
  void updateMembers(const Change& change);
  // Takes the dead that have this worker's rank or name off the list.
  void makeRoom(std::vector<MemberRecord>& members);
  std::string me() const;

  c10::intrusive_ptr<c10d::Store> store_;  // under "weft/"; of a static group, its meeting's
  const std::string name_;
  const std::int32_t rank_;
  const int world_;
  const milliseconds timeout_;
  bool was_restarted_ = false;
  std::vector<MemberRecord> replaced_;  // by join()
  std::atomic<bool> left_{false};       // or leaves; of a dynamic group
};

}  // namespace weft::rpc
