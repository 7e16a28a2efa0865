#include "rpc_backend/group/directory.h"

#include <mutex>
#include <sstream>

namespace weft::rpc {

void Directory::add(const std::string& name, worker_id_t id) {
  const std::unique_lock lock(mutex_);
  if (const auto known = by_name_.find(name); known != by_name_.end()) {
    if (known->second->id_ == id) return;
    removeLocked(known->second->id_);
  }
  const WorkerInfo& info = infos_.try_emplace({name, id}, name, id).first->second;  // checks it
  removeLocked(id);
  by_name_[name] = by_id_[id] = last_of_id_[id] = &info;
}

void Directory::remove(worker_id_t id) {
  const std::unique_lock lock(mutex_);
  removeLocked(id);
}

void Directory::removeLocked(worker_id_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  by_name_.erase(found->second->name_);
  by_id_.erase(found);
}

bool Directory::contains(worker_id_t id) const {
  const std::shared_lock lock(mutex_);
  return by_id_.contains(id);
}

const WorkerInfo* Directory::find(const std::string& name) const {
  const std::shared_lock lock(mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const WorkerInfo& Directory::byName(const std::string& name) const {
  const std::shared_lock lock(mutex_);
  if (const auto found = by_name_.find(name); found != by_name_.end()) return *found->second;
  std::ostringstream known;
  for (const auto& [id, info] : by_id_)
    known << " '" << info->name_ << "'";
  TORCH_CHECK(false, "could not find destination worker '", name, "'. Known here:", known.str());
}

const WorkerInfo& Directory::byId(worker_id_t id) const {
  const std::shared_lock lock(mutex_);
  if (const auto found = by_id_.find(id); found != by_id_.end()) return *found->second;
  std::vector<worker_id_t> known;
  for (const auto& [other, info] : by_id_)
    known.push_back(other);
  const auto departed = last_of_id_.find(id);
  TORCH_CHECK(departed == last_of_id_.end(), "worker '", departed->second->name_, "' (rank ", id,
              ") has left the group. Known ranks: ", known);
  TORCH_CHECK(false, "could not find destination worker of rank ", id, ". Known ranks: ", known);
}

const WorkerInfo* Directory::everKnown(worker_id_t id) const {
  const std::shared_lock lock(mutex_);
  const auto found = last_of_id_.find(id);
  return found == last_of_id_.end() ? nullptr : found->second;
}

std::string Directory::nameOf(worker_id_t id) const {
  const WorkerInfo* info = everKnown(id);
  return info == nullptr ? "?" : info->name_;
}

std::vector<WorkerInfo> Directory::all() const {
  std::vector<WorkerInfo> infos;
  const std::shared_lock lock(mutex_);
  for (const auto& [id, info] : by_id_)
    infos.push_back(*info);
  return infos;
}

}  // namespace weft::rpc
