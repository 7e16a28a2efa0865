// Everybody lays out the parts that others want, and adds up its own: each rank writes, and reads,
// only the others' share of its data once.
#include "c10d_plugin/reduce_kernels.h"
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
  const Place place = placeFor(largest(in), size_ - 1);
  return exchange(
      othersOf(in), place, [&] { return piecesOf(largest(in), place); },
      [&](std::size_t piece) {
        const std::size_t begin = piece * place.piece;
        if (begin >= out.size()) return;
        const std::size_t bytes = std::min(place.piece, out.size() - begin);
        inputs_.clear();
        for (int rank = 0; rank < size_; ++rank) {
          inputs_.push_back(rank == rank_ ? in[own].data() + begin
                                          : pieceOf(rank, place, slotOf(rank_, rank)));
        }
        reduceInto(call.element, call.reduction, out.data() + begin, inputs_,
                   bytes / sizeOf(call.element));
      });
}

}  // namespace weft::collectives
