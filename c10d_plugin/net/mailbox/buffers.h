// Memory of messages.
#pragma once

#include <cstring>
#include <memory>

#include "transport/base/buffer.h"

namespace weft::collectives {

inline transport::OwnedBuffer newBuffer(std::size_t size) {
  if (size == 0) return {};
  const std::shared_ptr<std::byte[]> memory = std::make_unique_for_overwrite<std::byte[]>(size);
  return {memory.get(), size, memory};
}

inline void copyInto(const transport::OwnedBuffer& into, const transport::OwnedBuffer& from) {
  if (into.size > 0 && into.data != from.data) std::memcpy(into.data, from.data, into.size);
}

inline transport::OwnedBuffer copyOf(const transport::OwnedBuffer& data) {
  transport::OwnedBuffer copy = newBuffer(data.size);
  copyInto(copy, data);
  return copy;
}

}  // namespace weft::collectives
