#include "transport/frame/buffer_table.h"

#include "transport/base/bytes.h"

namespace weft::transport {
namespace {

constexpr std::size_t kEntryBytes = sizeof(std::uint64_t);

}  // namespace

void BufferTable::begin(const FrameHead& head) {
  count_ = head.buffer_count;
  announced_ = head.buffer_bytes;
  sum_ = 0;
  sizes_.clear();
  inline_bytes_ = 0;
  placed_.clear();
  located_ = 0;
}

Result<bool> BufferTable::read(std::span<const std::byte>& input) {
  while (sizes_.size() < count_) {
    if (input.size() < kEntryBytes) return false;
    if (Error error = addEntry(loadLittle<std::uint64_t>(input.data()))) return error;
    input = input.subspan(kEntryBytes);
    if (sizes_.size() == count_ && sum_ != announced_) {
      return protocolError("the buffers are shorter than their frame announces");
    }
  }
  for (; located_ < placed_.size(); ++located_) {
    if (input.size() < ArenaDescriptor::kBytes) return false;
    ArenaDescriptor& where = placed_[located_].where;
    where = ArenaDescriptor::decode(input.data());
    input = input.subspan(ArenaDescriptor::kBytes);
    if (where.reserved != 0) return protocolError("unknown form of a shared memory descriptor");
  }
  return true;
}

Error BufferTable::addEntry(std::uint64_t entry) {
  const std::uint64_t size = entry & kBufferLengthMask;
  const std::uint64_t place = entry & ~kBufferLengthMask;
  if (place != 0 && place != kBufferInArena && place != kBufferExported)
    return protocolError("a buffer has an unknown kind of place");
  if (size > announced_ - sum_)
    return protocolError("the buffers are longer than their frame announces");
  sum_ += size;
  if (place == 0) {
    inline_bytes_ += size;
  } else {
    placed_.push_back({static_cast<std::uint32_t>(sizes_.size()), place == kBufferExported, {}});
  }
  sizes_.push_back(size);
  return Error::ok();
}

}  // namespace weft::transport
