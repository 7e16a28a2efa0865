#include "c10d_plugin/shm/segment/invitation.h"

#include "c10d_plugin/shm/segment/layout.h"
#include "c10d_plugin/store/record.h"

namespace weft::collectives::shm {

std::string Invitation::toText() const {
  return Record()
      .set("socket", socket)
      .set("buffer_bytes", buffer_bytes)
      .set("small_bytes", small_bytes)
      .set("heap_bytes", heap_bytes)
      .toText();
}

Result<Invitation> Invitation::fromText(const std::string& text) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const Record record = Record::fromText(text).value_or(Record());
  if (const std::string why = record.text("error"); !why.empty())
    return Error(ErrorCode::kSystem, "rank 0 could not make shared memory: " + why);
  const auto buffer = record.number("buffer_bytes");
  const auto small = record.number("small_bytes");
  const auto heap = record.number("heap_bytes");
  if (!buffer || !small || !heap || *buffer > kMost || *small > kMost || *heap > kMostHeap) {
    return Error(ErrorCode::kProtocol, "malformed rendezvous message from rank 0");
  }
  return Invitation{record.text("socket"), *buffer, *small, *heap};
}

}  // namespace weft::collectives::shm
