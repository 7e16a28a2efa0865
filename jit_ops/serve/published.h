// What this process publishes: names, each with one or more versions of a servable.
//
// Any worker of the group may call it as worker/name; nothing else of this process can be reached
// that way. Publishing needs no group: it may come before or after joining one, and lasts until
// unpublish() or the process's end. Any thread.
//
// Versions count from 1 and are never given twice for a name. A call that names no version gets the
// newest. Calls that have begun end with the version they began with.
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

// Returns the version. `version` kNewest: the next one. Throws c10::Error for a version that is
// there already and for a name with other characters than letters, digits and _ . -
WEFT_API std::int64_t publish(const std::string& name, std::shared_ptr<Servable> servable,
                              std::int64_t version = kNewest);

// Takes back one version, or all of a name (kNewest). Throws c10::Error when there is none.
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
