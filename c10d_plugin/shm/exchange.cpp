#include "c10d_plugin/shm/exchange.h"

#include "transport/memory/fast_memcpy.h"

namespace weft::collectives {

ShmCollectives::BufferSlot ShmCollectives::bufferSlotFor(std::size_t largest_part,
                                                         int parts) const {
  const std::size_t count = std::max<std::size_t>(1, static_cast<std::size_t>(parts));
  const std::size_t small = segment_->layout().small_bytes;
  if (largest_part <= small && shm::roundUp(largest_part, shm::kCacheLine) * count <= small) {
    return {true, shm::roundUp(largest_part, shm::kCacheLine)};
  }
  const std::size_t room = segment_->layout().buffer_bytes / count;
  return {false, room / shm::kCacheLine * shm::kCacheLine};
}

std::size_t ShmCollectives::piecesOf(std::size_t bytes, const BufferSlot& place) {
  return bytes == 0 ? 0 : (bytes + place.piece - 1) / place.piece;
}

std::size_t ShmCollectives::piecesFrom(int rank, std::size_t bytes, const BufferSlot& place) const {
  return isDirect(rank) ? std::min<std::size_t>(bytes, 1) : piecesOf(bytes, place);
}

Error ShmCollectives::needBuffers() {
  if (have_buffers_) return Error::ok();
  if (Error error = segment_->obtainBuffers(rank_)) {
    segment_->fail(error);
    return error;
  }
  have_buffers_ = true;
  return Error::ok();
}

void ShmCollectives::writePieces(std::span<const ConstBytes> parts, const BufferSlot& place,
                                 std::size_t number) {
  std::byte* to = place.small ? segment_->small(rank_, steps_.number())
                              : segment_->buffer(rank_, steps_.number());
  for (const ConstBytes& part : parts) {
    const std::size_t begin = number * place.piece;
    if (begin < part.size()) {
      const std::size_t bytes = std::min(place.piece, part.size() - begin);
      transport::fastMemcpy(to, part.data() + begin, bytes);
    }
    to += place.piece;
  }
}

const std::byte* ShmCollectives::pieceOf(int rank, const BufferSlot& place, int slot) const {
  const std::uint64_t written = steps_.number() - 1;
  const std::byte* const from =
      place.small ? segment_->small(rank, written) : segment_->buffer(rank, written);
  return from + static_cast<std::size_t>(slot) * place.piece;
}

Error ShmCollectives::readPiece(int rank, const BufferSlot& place, int slot, std::size_t number,
                                Bytes out) {
  if (isDirect(rank)) {
    if (number != 0 || out.empty()) return Error::ok();
    const Result<std::byte*> from = offered(rank, slot, out.size());
    if (!from.ok()) return from.error();
    std::memcpy(out.data(), from.value(), out.size());
    return Error::ok();
  }
  const std::size_t begin = number * place.piece;
  if (begin >= out.size()) return Error::ok();
  const std::size_t bytes = std::min(place.piece, out.size() - begin);
  std::memcpy(out.data() + begin, pieceOf(rank, place, slot), bytes);
  return Error::ok();
}

std::span<const ConstBytes> ShmCollectives::othersOf(std::span<const ConstBytes> parts) {
  others_.clear();
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (rank != static_cast<std::size_t>(rank_)) others_.push_back(parts[rank]);
  }
  return others_;
}

}  // namespace weft::collectives
