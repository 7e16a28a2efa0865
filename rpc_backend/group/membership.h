// How workers find each other through the c10d Store: the group's key, who is in it, and
// where. Used on the thread that creates or shuts down an agent; every wait is bounded by
// the Store's timeout, and says every 5 s whom it waits for.
//
// Keys (under "weft/"): `secret` (group id and key, by rank 0 or the first to come), `kind` (static
// or dynamic), `claim/R` (a counter that shows two workers with one rank), `member/R`
// (MemberRecord), `abort` (why the group can't form), `formed` (a static group has), `barriers`
// (how many it has passed), for dynamic groups `lock` and `members`.
//
// A Store whose server has ended fails all of it with an error that says so (group_store.h).
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "rpc_backend/group/member_record.h"
#include "transport/auth/auth_key.h"

namespace weft::rpc {

struct GroupSecret {
  std::string group_id;
  transport::AuthKey key;
  std::string auth;       // "file" or "store"
  std::string key_check;  // of a key from a file: transport::keyCheck
};

class Membership {
 public:
  // `world` 0: a dynamic group, which workers join and leave.
  Membership(c10::intrusive_ptr<c10d::Store> store, std::string name, std::int32_t rank, int world);

  // The key file when one is named, else the key in the Store. Throws c10::Error.
  GroupSecret secret(const std::string& key_file);

  // Static groups: posts `self`, waits for all, checks them. Throws on every worker what all
  // can see (duplicate names, other versions) or one has seen (another world_size). When the group
  // has formed already, a worker that died is taken back under its rank and name.
  std::vector<MemberRecord> meet(const MemberRecord& self);

  // This rank had a former life: it is dead, or has left.
  bool returned() const noexcept { return returned_; }

  // Dynamic groups: adds `self` and returns who was there before. Bounded.
  std::vector<MemberRecord> join(const MemberRecord& self);
  void leave();
  // A member that turned out to be gone (it died without leaving). Its successor, who has the
  // same rank and another address, stays.
  void forget(std::int32_t rank, const std::string& address);

  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  c10::intrusive_ptr<c10d::Store> store() const { return store_; }

 private:
  void claimRank();
  std::vector<MemberRecord> meetAgain(const MemberRecord& self);
  void agreeOnKind();
  [[noreturn]] void abort(const std::string& why);
  void throwIfAborted();
  void waitFor(const std::vector<std::int32_t>& ranks);
  MemberRecord read(std::int32_t rank);
  void check(const MemberRecord& self, const std::vector<MemberRecord>& members);
  std::vector<std::int32_t> memberRanks();
  void erase(std::int32_t rank);
  void setMemberRanks(const std::vector<std::int32_t>& ranks);
  void locked(const std::function<void()>& body);
  std::string me() const;

  c10::intrusive_ptr<c10d::Store> store_;  // a GroupStore with the prefix "weft"
  const std::string name_;
  const std::int32_t rank_;
  const int world_;
  const std::chrono::milliseconds timeout_;
  bool returned_ = false;
};

}  // namespace weft::rpc
