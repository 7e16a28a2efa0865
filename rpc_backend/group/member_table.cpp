#include "rpc_backend/group/member_table.h"

#include <algorithm>

#include "rpc_backend/group/device_map_rules.h"

namespace weft::rpc {

void MemberTable::add(const MemberRecord& member) {
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [&](const MemberRecord& known) { return known.rank == member.rank; });
  members_.push_back(member);
  reverse_maps_ = reverseMaps(members_, self_);
}

void MemberTable::remove(worker_id_t rank) {
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [&](const MemberRecord& known) { return known.rank == rank; });
  reverse_maps_ = reverseMaps(members_, self_);
}

std::vector<MemberRecord> MemberTable::all() const {
  const std::lock_guard lock(mutex_);
  return members_;
}

bool MemberTable::contains(worker_id_t rank) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(members_, [&](const auto& member) { return member.rank == rank; });
}

bool MemberTable::allHavePolicy(const std::string& policy) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(members_, [&](const auto& known) { return known.policy == policy; });
}

DeviceMap MemberTable::reverseMap(const std::string& peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = reverse_maps_.find(peer);
  return found == reverse_maps_.end() ? DeviceMap{} : found->second;
}

}  // namespace weft::rpc
