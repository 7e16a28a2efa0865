// MemberTable: the records of a group's workers, all but this one, and what follows from them for
// this worker.
//
// Threads: any. Its lock is a leaf.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rpc_backend/join/member_record.h"

namespace weft::rpc {

class MemberTable {
 public:
  // `self`: the name of this worker.
  explicit MemberTable(std::string self) : self_(std::move(self)) {}

  void add(const MemberRecord& member);  // replaces the one of that rank
  void remove(worker_id_t rank);

  std::vector<MemberRecord> all() const;
  bool contains(worker_id_t rank) const;
  bool allHavePolicy(const std::string& policy) const;
  // From devices here to those of `peer`, which maps its own to those here.
  DeviceMap reverseMap(const std::string& peer) const;

 private:
  void erase(worker_id_t rank);  // with the lock

  const std::string self_;
  mutable std::mutex mutex_;  // guards those below
  std::vector<MemberRecord> members_;
  DeviceMaps reverse_maps_;  // of members_
};

}  // namespace weft::rpc
