// reduce_scatter: every rank lays out the parts that the others want and reduces its own, so each
// rank writes and reads only the others' share of its data, once.
#include "c10d_plugin/shm/exchange.h"
#include "c10d_plugin/shm/reduction.h"
#include "c10d_plugin/shm/shm_collectives.h"
#include "transport/base/peer_name.h"

namespace weft::collectives {

using namespace shm;  // NOLINT(google-build-using-namespace): its own parts

namespace {

// Where the others' parts for this rank are, of those that offer them, into the scratch addresses.
Error findOffers(Context& context, std::size_t bytes) {
  std::vector<std::byte*>& addresses = context.scratch().addresses;
  addresses.assign(static_cast<std::size_t>(context.size()), nullptr);
  for (int rank = 0; rank < context.size() && bytes != 0; ++rank) {
    if (rank == context.rank() || !context.direct().isFrom(rank)) continue;
    const int index = partIndex(context.rank(), rank);
    const Result<std::byte*> address = context.direct().find(rank, index, bytes, context.op());
    if (!address.ok()) return address.error();
    addresses[static_cast<std::size_t>(rank)] = address.value();
  }
  return Error::ok();
}

std::string problemWith(Context& context, std::span<const ConstBytes> in, Bytes out) {
  if (in.size() != static_cast<std::size_t>(context.size())) {
    return "needs one input for each of the " + std::to_string(context.size()) + " ranks, got " +
           std::to_string(in.size());
  }
  for (const ConstBytes& part : in) {
    if (std::string why = whyNotReducible(context.op(), part.size()); !why.empty()) return why;
  }
  const std::size_t own = in[static_cast<std::size_t>(context.rank())].size();
  if (own == out.size()) return {};
  return "the input for this rank's own output has " + transport::bytesText(own);
}

}  // namespace

Error ShmCollectives::reduceScatter(const Call& call, std::span<const ConstBytes> in, Bytes out) {
  Context& context = context_;
  if (Error error = context.begin(call, Operation::kReduceScatter, out.size())) return error;
  if (const std::string why = problemWith(context, in, out); !why.empty())
    return context.refuse(why);
  const auto own = static_cast<std::size_t>(context.rank());
  context.publishSizes(SizeTable::kSent, in, true);
  // For the largest part of all, so that all ranks lay the parts out alike.
  BufferSlot slot = slotFor(context, largest(in), context.size() - 1);
  return exchange(
      context, partsForOthers(context, in), slot,
      [&] {
        // Nothing is laid out: then it goes in one piece.
        if (context.direct().all()) slot.piece = std::max<std::size_t>(largest(in), 1);
        return piecesOf(largest(in), slot.piece);
      },
      [&](std::size_t piece) -> Error {
        if (piece == 0) {
          if (Error error = findOffers(context, out.size())) return error;
        }
        const std::size_t begin = piece * slot.piece;
        if (begin >= out.size()) return Error::ok();
        auto& inputs = context.scratch().inputs;
        inputs.clear();
        for (int rank = 0; rank < context.size(); ++rank) {
          const std::byte* from = in[own].data() + begin;
          if (rank != context.rank() && context.direct().isFrom(rank)) {
            from = context.scratch().addresses[static_cast<std::size_t>(rank)] + begin;
          } else if (rank != context.rank()) {
            from = writtenBy(context, rank, slot, partIndex(context.rank(), rank));
          }
          inputs.push_back(from);
        }
        reduceInputs(context, out.data() + begin, std::min(slot.piece, out.size() - begin));
        return Error::ok();
      });
}

}  // namespace weft::collectives
