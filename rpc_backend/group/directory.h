// Directory: the names and ranks of a group. Any thread.
//
// The references that it returns stay valid as long as the directory, because torch keeps them. So
// the entry of a worker that left is not freed; a worker that comes back under the same name and
// rank gets it again.
#pragma once

#include <map>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

class Directory {
 public:
  void add(const std::string& name, worker_id_t id);  // replaces what had that name or id
  void remove(worker_id_t id);

  bool contains(worker_id_t id) const;
  const WorkerInfo* find(const std::string& name) const;  // null: nobody here has it
  // Throw a c10::Error that names the workers that are known.
  const WorkerInfo& byName(const std::string& name) const;
  const WorkerInfo& byId(worker_id_t id) const;
  // The worker of that id, or the last one that left; null: there never was one.
  const WorkerInfo* everKnown(worker_id_t id) const;
  std::string nameOf(worker_id_t id) const;  // of everKnown(); "?" when there never was one

  std::vector<WorkerInfo> all() const;  // ordered by id

 private:
  void removeLocked(worker_id_t id);

  mutable std::shared_mutex mutex_;
  std::map<std::pair<std::string, worker_id_t>, WorkerInfo> infos_;  // of all workers ever here
  std::unordered_map<std::string, const WorkerInfo*> by_name_;       // the workers here
  std::map<worker_id_t, const WorkerInfo*> by_id_;                   // likewise
  std::map<worker_id_t, const WorkerInfo*> last_of_id_;              // also those that left last
};

}  // namespace weft::rpc
