// Who is in the group: names to ranks and back. Any thread.
//
// References that it returns stay valid as long as the directory, because torch keeps them:
// a worker that left is set aside, not freed.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace weft::rpc {

class Directory {
 public:
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;
  using worker_id_t = torch::distributed::rpc::worker_id_t;

  void add(const std::string& name, worker_id_t id);  // replaces what had that name or id
  void remove(worker_id_t id);

  // Throw c10::Error that says who is known.
  const WorkerInfo& byName(const std::string& name) const;
  const WorkerInfo& byId(worker_id_t id) const;
  // Null when there is none.
  const WorkerInfo* find(worker_id_t id) const;
  // As find(), and the last of that id that left.
  const WorkerInfo* everKnown(worker_id_t id) const;

  std::vector<WorkerInfo> all() const;       // ordered by id
  std::vector<worker_id_t> ids() const;      // ordered
  std::string nameOf(worker_id_t id) const;  // "?" when unknown

 private:
  void removeLocked(worker_id_t id);

  mutable std::shared_mutex mutex_;
  std::unordered_map<worker_id_t, std::unique_ptr<WorkerInfo>> by_id_;
  std::unordered_map<std::string, worker_id_t> by_name_;
  std::vector<std::unique_ptr<WorkerInfo>> departed_;
};

}  // namespace weft::rpc
