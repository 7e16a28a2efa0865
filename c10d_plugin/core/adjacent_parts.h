// AdjacentParts: parts as one piece of memory, for algorithms that want them so. The parts' own
// memory where they lie side by side in their order, else memory of its own.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "c10d_plugin/core/collectives.h"

namespace weft::collectives {

// Part is Bytes, or ConstBytes for parts that are only read.
template <typename Part>
class AdjacentParts {
 public:
  enum class Use { kRead, kWrite };

  // kRead: all() has the parts' contents. kWrite: copyBack() gives them what was written to all().
  AdjacentParts(std::span<const Part> parts, Use use) {
    std::size_t total = 0;
    bool adjacent = true;
    for (const Part& part : parts) {
      adjacent = adjacent && (part.empty() || part.data() == parts[0].data() + total);
      total += part.size();
    }
    all_ = Part(parts[0].data(), adjacent ? total : 0);
    if (adjacent) return;
    copy_ = std::make_unique_for_overwrite<std::byte[]>(total);
    all_ = Part(copy_.get(), total);
    if (use == Use::kWrite) return;
    std::byte* to = copy_.get();
    for (const Part& part : parts) {
      if (!part.empty()) std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
  }

  Part all() const { return all_; }

  void copyBack(std::span<const Bytes> parts) const {
    const std::byte* from = copy_.get();
    for (const Bytes& part : parts) {
      if (from == nullptr) return;
      if (!part.empty()) std::memcpy(part.data(), from, part.size());
      from += part.size();
    }
  }

 private:
  Part all_;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace weft::collectives
