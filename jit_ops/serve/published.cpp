#include "jit_ops/serve/published.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "jit_ops/serve/plain_errors.h"

namespace weft::ops {

namespace {

struct Entry {
  std::map<std::int64_t, std::shared_ptr<Servable>> versions;
  std::int64_t last = 0;     // the highest version ever given, so that none returns as another
  std::int64_t removed = 0;  // the highest that was unpublished
};

struct Registry {
  std::shared_mutex mutex;
  std::map<std::string, Entry, std::less<>> entries;  // entries without versions are remembered
};

// Never destroyed: worker threads may look something up while the process exits.
Registry& registry() {
  static auto* one = new Registry;
  return *one;
}

void checkName(const std::string& name) {
  const bool fine = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  });
  TORCH_CHECK(fine, "'", name,
              "' cannot be a published name: letters, digits, '_', '.' and '-' are allowed, as in "
              "\"encoder\"");
}

std::string listed() {
  std::string text;
  for (const PublishedInfo& info : published())
    text += (text.empty() ? "" : ", ") + info.name + " version " + std::to_string(info.version);
  return text.empty() ? "nothing is published" : "published are: " + text;
}

std::string wanted(const std::string& name, std::int64_t version) {
  return "'" + name + "'" + (version == kNewest ? "" : " version " + std::to_string(version));
}

}  // namespace

std::int64_t publish(const std::string& name, std::shared_ptr<Servable> servable,
                     std::int64_t version) try {
  checkName(name);
  TORCH_CHECK(servable != nullptr, "there is nothing to publish as '", name, "'");
  TORCH_CHECK(version >= 0, "versions count from 1, got ", version);
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  Entry& entry = all.entries[name];
  if (version == kNewest) {
    TORCH_CHECK(entry.last < std::numeric_limits<std::int64_t>::max(), "'", name, "' had version ",
                entry.last, ", and there is no next one; name a version that was not used");
    version = entry.last + 1;
  }
  TORCH_CHECK(!entry.versions.contains(version), wanted(name, version),
              " is published already; unpublish it first, or publish without a version to get the "
              "next one");
  TORCH_CHECK(version > entry.removed, wanted(name, version), " cannot be published: version ",
              entry.removed,
              " was unpublished, and neither it nor a lower one is ever given again; publish "
              "without a version to get the next one");
  entry.versions.emplace(version, std::move(servable));
  entry.last = std::max(entry.last, version);
  return version;
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

void unpublish(const std::string& name, std::int64_t version) try {
  // Let go of outside the lock: a servable's end may run user code.
  std::map<std::int64_t, std::shared_ptr<Servable>> gone;
  Registry& all = registry();
  std::unique_lock lock(all.mutex);
  if (const auto entry = all.entries.find(name); entry != all.entries.end()) {
    auto& versions = entry->second.versions;
    if (version == kNewest) {
      gone.swap(versions);
    } else {
      gone.insert(versions.extract(version));
    }
    if (!gone.empty())
      entry->second.removed = std::max(entry->second.removed, gone.rbegin()->first);
  }
  lock.unlock();
  TORCH_CHECK(!gone.empty(), wanted(name, version), " is not published here; ", listed());
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

std::vector<PublishedInfo> published() {
  std::vector<PublishedInfo> out;
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  for (const auto& [name, entry] : all.entries) {
    for (const auto& [version, servable] : entry.versions) {
      PublishedInfo info{name, version, {}};
      for (const Servable::Method& method : servable->methods())
        info.methods.push_back(method.signature);
      out.push_back(std::move(info));
    }
  }
  return out;
}

Found findPublished(const std::string& name, std::int64_t version) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  const auto entry = all.entries.find(name);
  if (entry == all.entries.end() || entry->second.versions.empty()) return {};
  const auto& versions = entry->second.versions;
  const auto found = version == kNewest ? std::prev(versions.end()) : versions.find(version);
  if (found == versions.end()) return {};
  return {found->second, found->first};
}

Found mustFindPublished(const std::string& name, std::int64_t version) {
  Found found = findPublished(name, version);
  TORCH_CHECK(found.servable != nullptr, wanted(name, version), " is not published here; ",
              listed());
  return found;
}

}  // namespace weft::ops
