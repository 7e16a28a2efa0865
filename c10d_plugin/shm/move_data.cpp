// The operations that only move data: ranks lay out what they have for others, and copy out what
// others have for them.
#include "c10d_plugin/shm/exchange.h"
#include "c10d_plugin/shm/shm_collectives.h"
#include "transport/base/peer_name.h"

namespace weft::collectives {

using namespace shm;  // NOLINT(google-build-using-namespace): its own parts

namespace {

// Lays out `parts`, one for each of the others (`for_each`) or one for all, and copies out what the
// others have. `own`: this rank's part for itself. slot_of(n): where a rank lays out parts of which
// the largest has n bytes. After the first meeting, largest_from(rank): the largest part that a
// rank lays out; out_from(rank): where this rank's is copied to.
template <typename SlotOf, typename LargestFrom, typename OutFrom>
Error move(Context& context, std::span<const ConstBytes> parts, bool for_each, ConstBytes own,
           SlotOf&& slot_of, LargestFrom&& largest_from, OutFrom&& out_from) {
  std::vector<std::size_t>& sizes = context.scratch().sizes;
  return exchange(
      context, parts, parts.empty() ? BufferSlot{} : slot_of(largest(parts)),
      [&] {
        copyOwn(own, out_from(context.rank()));
        sizes.clear();
        std::size_t pieces = 0;
        for (int rank = 0; rank < context.size(); ++rank) {
          const std::size_t bytes = sizes.emplace_back(largest_from(rank));
          pieces = std::max(pieces, piecesFrom(context, rank, bytes, slot_of(bytes)));
        }
        return pieces;
      },
      [&](std::size_t piece) -> Error {
        for (int rank = 0; rank < context.size(); ++rank) {
          if (rank == context.rank()) continue;
          const BufferSlot slot = slot_of(sizes[static_cast<std::size_t>(rank)]);
          const int index = for_each ? partIndex(context.rank(), rank) : 0;
          if (Error error = readPiece(context, rank, slot, index, piece, out_from(rank)))
            return error;
        }
        return Error::ok();
      });
}

// The largest part that `rank` sends, as it told.
std::size_t largestSent(const Context& context, int rank) {
  std::size_t most = 0;
  for (int to = 0; to < context.size(); ++to)
    if (to != rank) most = std::max(most, context.sizeFrom(rank, SizeTable::kSent, to));
  return most;
}

std::string wrongCount(std::size_t count, const char* what, const Context& context) {
  return std::string("needs one ") + what + " for each of the " + std::to_string(context.size()) +
         " ranks, got " + std::to_string(count);
}

Bytes placeOf(std::span<const Bytes> out, int rank) {
  return out.empty() ? Bytes() : out[static_cast<std::size_t>(rank)];
}

}  // namespace

Error ShmCollectives::broadcast(const Call& call, Bytes data, int root) {
  if (Error error = context_.begin(call, Operation::kBroadcast, data.size(), root)) return error;
  const ConstBytes part = data;
  return move(
      context_, std::span(&part, rank() == root ? 1 : 0), false, {},
      [&](std::size_t bytes) {
        BufferSlot slot = slotFor(context_, bytes, 1);
        // Several pieces, so that the root writes one while the others read the one before.
        constexpr std::size_t kLeast = std::size_t{128} << 10;
        if (!slot.small)
          slot.piece = std::min(slot.piece, std::max(roundUp(bytes / 4, kCacheLine), kLeast));
        return slot;
      },
      [&](int from) { return from == root ? data.size() : 0; },
      [&](int from) { return from == root ? data : Bytes(); });
}

Error ShmCollectives::allGather(const Call& call, ConstBytes in, std::span<const Bytes> out) {
  if (Error error = context_.begin(call, Operation::kAllGather, in.size())) return error;
  if (out.size() != static_cast<std::size_t>(size()))
    return context_.refuse(wrongCount(out.size(), "output", context_));
  if (placeOf(out, rank()).size() != in.size()) {
    return context_.refuse("the output for this rank's own input has " +
                           transport::bytesText(placeOf(out, rank()).size()));
  }
  context_.publishSizes(SizeTable::kExpected, out, true);
  return move(
      context_, std::span(&in, 1), false, in,
      [&](std::size_t bytes) { return slotFor(context_, bytes, 1); },
      [&](int from) { return placeOf(out, from).size(); },
      [&](int from) { return placeOf(out, from); });
}

Error ShmCollectives::gather(const Call& call, ConstBytes in, std::span<const Bytes> out,
                             int root) {
  if (Error error = context_.begin(call, Operation::kGather, in.size(), root)) return error;
  const bool is_root = rank() == root;
  if (!is_root) out = {};
  if (is_root && out.size() != static_cast<std::size_t>(size()))
    return context_.refuse("the root " + wrongCount(out.size(), "output", context_));
  if (is_root) context_.publishSizes(SizeTable::kExpected, out, false);
  return move(
      context_, std::span(&in, is_root ? 0 : 1), false, is_root ? in : ConstBytes(),
      [&](std::size_t bytes) { return slotFor(context_, bytes, 1); },
      [&](int from) {
        return from == root ? 0 : context_.sizeFrom(root, SizeTable::kExpected, from);
      },
      [&](int from) { return placeOf(out, from); });
}

Error ShmCollectives::scatter(const Call& call, std::span<const ConstBytes> in, Bytes out,
                              int root) {
  if (Error error = context_.begin(call, Operation::kScatter, out.size(), root)) return error;
  const bool is_root = rank() == root;
  if (!is_root) in = {};
  if (is_root && in.size() != static_cast<std::size_t>(size()))
    return context_.refuse("the root " + wrongCount(in.size(), "input", context_));
  if (is_root) context_.publishSizes(SizeTable::kSent, in, false);
  return move(
      context_, partsForOthers(context_, in), true,
      is_root ? in[static_cast<std::size_t>(root)] : ConstBytes(),
      [&](std::size_t bytes) { return slotFor(context_, bytes, size() - 1); },
      [&](int from) { return from == root ? largestSent(context_, root) : 0; },
      [&](int from) { return from == root ? out : Bytes(); });
}

Error ShmCollectives::allToAll(const Call& call, std::span<const ConstBytes> in,
                               std::span<const Bytes> out) {
  if (Error error = context_.begin(call, Operation::kAllToAll, OpFingerprint::kVaries))
    return error;
  const auto ranks = static_cast<std::size_t>(size());
  if (in.size() != ranks || out.size() != ranks) {
    return context_.refuse(wrongCount(in.size(), "input and one output", context_) + " and " +
                           std::to_string(out.size()));
  }
  context_.publishSizes(SizeTable::kSent, in, false);
  context_.publishSizes(SizeTable::kExpected, out, false);
  return move(
      context_, partsForOthers(context_, in), true, in[static_cast<std::size_t>(rank())],
      [&](std::size_t bytes) { return slotFor(context_, bytes, size() - 1); },
      [&](int from) { return largestSent(context_, from); },
      [&](int from) { return placeOf(out, from); });
}

}  // namespace weft::collectives
