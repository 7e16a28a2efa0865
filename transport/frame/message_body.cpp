#include "transport/frame/message_body.h"

#include <algorithm>
#include <cstring>

#include "transport/frame/frame.h"

namespace weft::transport {

void MessageBody::begin(std::vector<OwnedBuffer> buffers, const BufferTable& table,
                        std::shared_ptr<Arrivals> arrivals) {
  discards_ = false;
  buffers_ = std::move(buffers);
  arrivals_ = std::move(arrivals);
  unread_ = table.sizes();
  for (const BufferTable::Placed& placed : table.placed())
    unread_[placed.buffer] = 0;
  left_ = table.inlineBytes();
  index_ = 0;
  filled_ = 0;
  skipFull();
}

void MessageBody::beginDiscard(std::uint64_t unread_bytes) {
  discards_ = true;
  buffers_.clear();
  arrivals_.reset();
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
  for (std::size_t i = unread_.size(); share > 0; --i) {
    std::uint64_t& here = unread_[i - 1];
    const std::uint64_t part = std::min(here, share);
    here -= part;
    share -= part;
    if (part > 0) into.push_back({buffers_[i - 1].data + here, static_cast<std::size_t>(part)});
  }
  std::reverse(into.begin(), into.end());
  skipFull();
  return into;
}

std::size_t MessageBody::targets(std::span<iovec> out, std::uint64_t& covered) const {
  std::size_t used = 0;
  std::uint64_t offset = filled_;
  for (std::size_t i = index_; i < buffers_.size() && used < out.size(); ++i) {
    if (unread_[i] > offset) {
      out[used++] = {buffers_[i].data + offset, static_cast<std::size_t>(unread_[i] - offset)};
      covered += unread_[i] - offset;
    }
    offset = 0;
  }
  return used;
}

void MessageBody::advance(std::uint64_t count) {
  left_ -= count;
  while (!discards_ && count > 0) {
    const std::uint64_t room = unread_[index_] - filled_;
    if (arrivals_ != nullptr) {
      arrivals_->onBytes(buffers_[index_].data + filled_,
                         static_cast<std::size_t>(std::min(count, room)));
    }
    if (count < room) {
      filled_ += count;
      return;
    }
    count -= room;
    ++index_;
    filled_ = 0;
    skipFull();
  }
}

void MessageBody::copyFrom(std::span<const std::byte>& input) {
  while (left_ > 0 && !input.empty()) {
    std::size_t some = static_cast<std::size_t>(std::min<std::uint64_t>(input.size(), left_));
    if (!discards_) {
      some = static_cast<std::size_t>(std::min<std::uint64_t>(some, unread_[index_] - filled_));
      std::memcpy(buffers_[index_].data + filled_, input.data(), some);
    }
    advance(some);
    input = input.subspan(some);
  }
}

void MessageBody::skipFull() {
  while (index_ < unread_.size() && unread_[index_] == 0)
    ++index_;
}

}  // namespace weft::transport
