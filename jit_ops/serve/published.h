// What this process publishes: names, each with one or more versions of a servable.
//
// Any worker of the group may call a published name as worker/name; nothing else of this process
// can be reached that way. Publishing needs no group: a process may publish before or after it
// joins one, and a name stays published until unpublish() or the process's end. Any thread.
//
// Versions count from 1, and no version of a name is given twice. A call that names no version gets
// the newest. A call that has begun ends with the version with which it began.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "jit_ops/serve/servable.h"
#include "transport/base/api.h"

namespace weft::ops {

inline constexpr std::int64_t kNewest = 0;

struct PublishedInfo {
  std::string name;
  std::int64_t version = 0;
  std::vector<std::string> methods;  // signatures
};

// Publishes a servable and returns its version. `version` kNewest: the next one. Throws c10::Error
// if the version exists already or is not above all that were unpublished, or if the name has other
// characters than letters, digits and _ . -
WEFT_API std::int64_t publish(const std::string& name, std::shared_ptr<Servable> servable,
                              std::int64_t version = kNewest);

// Removes one version, or all versions of a name (kNewest). Throws c10::Error if there is none.
WEFT_API void unpublish(const std::string& name, std::int64_t version = kNewest);

// Everything, ordered by name and version.
WEFT_API std::vector<PublishedInfo> published();

struct Found {
  std::shared_ptr<Servable> servable;  // null: nothing of that name
  std::int64_t version = 0;
};
Found findPublished(const std::string& name, std::int64_t version);

// As findPublished(), but throws c10::Error that says what is published instead.
Found mustFindPublished(const std::string& name, std::int64_t version);

}  // namespace weft::ops
