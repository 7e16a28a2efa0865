#include "transport/frame/message_body.h"

#include <algorithm>

#include "transport/frame/frame.h"

namespace weft::transport {

void MessageBody::begin(std::vector<OwnedBuffer> buffers, const BufferTable& table,
                        std::shared_ptr<Arrivals> arrivals) {
  discards_ = false;
  buffers_ = std::move(buffers);
  arrivals_ = std::move(arrivals);
  left_ = table.inlineBytes();
  places_.clear();
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    places_.push_back({buffers_[i].data, static_cast<std::size_t>(table.sizes()[i])});
  for (const BufferTable::Placed& placed : table.placed())
    places_[placed.buffer].iov_len = 0;
  to_come_ = IovecCursor(places_);
}

void MessageBody::beginDiscard(std::uint64_t unread_bytes) {
  discards_ = true;
  buffers_.clear();
  arrivals_.reset();
  to_come_ = IovecCursor();
  left_ = unread_bytes;
}

std::vector<iovec> MessageBody::splitForBulk() {
  std::uint64_t share = bulkShare(left_);
  left_ -= share;
  std::vector<iovec> into;
  if (discards_) {
    if (share > 0) into.push_back({nullptr, static_cast<std::size_t>(share)});
    return into;
  }
  for (auto place = places_.rbegin(); share > 0; ++place) {
    const std::size_t part = std::min<std::uint64_t>(place->iov_len, share);
    place->iov_len -= part;
    share -= part;
    if (part > 0) into.push_back({static_cast<std::byte*>(place->iov_base) + place->iov_len, part});
  }
  std::reverse(into.begin(), into.end());
  to_come_ = IovecCursor(places_);
  return into;
}

void MessageBody::advance(std::size_t count) {
  left_ -= count;
  if (!discards_) to_come_.skip(count, arrivals_.get());
}

void MessageBody::copyFrom(std::span<const std::byte>& input) {
  const auto bytes = input.first(std::min<std::uint64_t>(input.size(), left_));
  input = input.subspan(bytes.size());
  if (!discards_) IovecCursor(to_come_).fillFrom(bytes);
  advance(bytes.size());
}

}  // namespace weft::transport
