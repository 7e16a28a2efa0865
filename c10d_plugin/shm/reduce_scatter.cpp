// Everybody lays out the parts that others want, and adds up its own: each rank writes, and reads,
// only the others' share of its data once.
#include "c10d_plugin/core/reduce_kernels.h"
#include "c10d_plugin/shm/exchange.h"

namespace weft::collectives {

using shm::SizeTable;

Error ShmCollectives::reduceScatter(const Call& call, std::span<const ConstBytes> in, Bytes out) {
  if (Error error = open(call, Operation::kReduceScatter, out.size())) return error;
  const auto own = static_cast<std::size_t>(rank_);
  if (in.size() != static_cast<std::size_t>(size_)) {
    return refuse(std::to_string(in.size()) + " parts for " + std::to_string(size_) + " ranks");
  }
  for (const ConstBytes& part : in) {
    if (const std::string why = checkReduction(part.size()); !why.empty()) return refuse(why);
  }
  if (in[own].size() != out.size()) {
    return refuse("the own part has " + std::to_string(in[own].size()) + " bytes");
  }
  tell(SizeTable::kSent, in, true);
  // Of all parts, so that all ranks lay them out alike.
  BufferSlot place = bufferSlotFor(largest(in), size_ - 1);
  return exchange(
      othersOf(in), place,
      [&] {
        // Nobody lays out anything: then it goes in one.
        if (offers_ == size_) place.piece = std::max<std::size_t>(largest(in), 1);
        return piecesOf(largest(in), place);
      },
      [&](std::size_t piece) -> Error {
        if (piece == 0) {
          if (Error error = findOffers(out.size())) return error;
        }
        const std::size_t begin = piece * place.piece;
        if (begin >= out.size()) return Error::ok();
        const std::size_t bytes = std::min(place.piece, out.size() - begin);
        inputs_.clear();
        for (int rank = 0; rank < size_; ++rank) {
          const std::byte* from = in[own].data() + begin;
          if (rank != rank_ && isDirect(rank)) {
            from = places_[static_cast<std::size_t>(rank)] + begin;
          } else if (rank != rank_) {
            from = pieceOf(rank, place, slotOf(rank_, rank));
          }
          inputs_.push_back(from);
        }
        reduceInto(call.element, call.reduction, out.data() + begin, inputs_,
                   bytes / sizeOf(call.element));
        return Error::ok();
      });
}

// Where the others' parts for this rank lie, of those that offered them.
Error ShmCollectives::findOffers(std::size_t bytes) {
  places_.assign(static_cast<std::size_t>(size_), nullptr);
  for (int rank = 0; rank < size_ && bytes != 0; ++rank) {
    if (rank == rank_ || !isDirect(rank)) continue;
    const Result<std::byte*> place = offered(rank, slotOf(rank_, rank), bytes);
    if (!place.ok()) return place.error();
    places_[static_cast<std::size_t>(rank)] = place.value();
  }
  return Error::ok();
}

}  // namespace weft::collectives
