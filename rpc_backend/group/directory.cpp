#include "rpc_backend/group/directory.h"

#include <algorithm>
#include <mutex>
#include <sstream>

namespace weft::rpc {

void Directory::removeLocked(worker_id_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  by_name_.erase(found->second->name_);
  departed_.push_back(std::move(found->second));
  by_id_.erase(found);
}

void Directory::add(const std::string& name, worker_id_t id) {
  auto info = std::make_unique<WorkerInfo>(name, id);  // checks the name
  const std::unique_lock lock(mutex_);
  const auto known = by_id_.find(id);
  if (known != by_id_.end() && known->second->name_ == name) return;
  removeLocked(id);
  if (const auto other = by_name_.find(name); other != by_name_.end()) removeLocked(other->second);
  by_name_[name] = id;
  by_id_[id] = std::move(info);
}

void Directory::remove(worker_id_t id) {
  const std::unique_lock lock(mutex_);
  removeLocked(id);
}

const Directory::WorkerInfo& Directory::byName(const std::string& name) const {
  {
    const std::shared_lock lock(mutex_);
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return *by_id_.at(found->second);
  }
  std::ostringstream known;
  for (const WorkerInfo& info : all())
    known << " '" << info.name_ << "'";
  TORCH_CHECK(false, "could not find destination worker '", name, "'. Known here:", known.str());
}

const Directory::WorkerInfo& Directory::byId(worker_id_t id) const {
  const WorkerInfo* info = find(id);
  const WorkerInfo* departed = info == nullptr ? everKnown(id) : nullptr;
  TORCH_CHECK(departed == nullptr, "worker '", departed == nullptr ? "" : departed->name_,
              "' (rank ", id, ") has left the group. Known ranks: ", ids());
  TORCH_CHECK(info != nullptr, "could not find destination worker of rank ", id,
              ". Known ranks: ", ids());
  return *info;
}

const Directory::WorkerInfo* Directory::find(worker_id_t id) const {
  const std::shared_lock lock(mutex_);
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second.get();
}

const Directory::WorkerInfo* Directory::everKnown(worker_id_t id) const {
  const std::shared_lock lock(mutex_);
  const auto found = by_id_.find(id);
  if (found != by_id_.end()) return found->second.get();
  for (auto info = departed_.rbegin(); info != departed_.rend(); ++info) {
    if ((*info)->id_ == id) return info->get();
  }
  return nullptr;
}

std::vector<Directory::WorkerInfo> Directory::all() const {
  std::vector<WorkerInfo> infos;
  const auto order = ids();
  const std::shared_lock lock(mutex_);
  infos.reserve(order.size());
  for (const worker_id_t id : order) {
    const auto found = by_id_.find(id);
    if (found != by_id_.end()) infos.push_back(*found->second);
  }
  return infos;
}

std::vector<Directory::worker_id_t> Directory::ids() const {
  std::vector<worker_id_t> ids;
  const std::shared_lock lock(mutex_);
  ids.reserve(by_id_.size());
  for (const auto& [id, info] : by_id_)
    ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::string Directory::nameOf(worker_id_t id) const {
  const WorkerInfo* info = find(id);
  return info == nullptr ? "?" : info->name_;
}

}  // namespace weft::rpc
