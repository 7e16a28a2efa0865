#include "rpc_backend/group/member_table.h"

#include <algorithm>

#include "rpc_backend/group/device_map_rules.h"

namespace weft::rpc {

void MemberTable::add(const MemberRecord& member) {
  const std::lock_guard lock(mutex_);
  erase(member.rank);
  members_.push_back(member);
  reverse_maps_.erase(member.name);  // of a lost worker that had the name
  reverse_maps_.merge(reverseMaps({member}, self_));
}

void MemberTable::remove(worker_id_t rank) {
  const std::lock_guard lock(mutex_);
  erase(rank);
}

void MemberTable::erase(worker_id_t rank) {
  const auto known = std::ranges::find(members_, rank, &MemberRecord::rank);
  if (known == members_.end()) return;
  const std::string name = known->name;
  members_.erase(known);
  if (std::ranges::find(members_, name, &MemberRecord::name) == members_.end())
    reverse_maps_.erase(name);
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
