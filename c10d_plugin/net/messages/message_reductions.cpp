// The reductions of MessageCollectives, and the trees.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "c10d_plugin/core/reduce_kernels.h"
#include "c10d_plugin/net/messages/message_collectives.h"
#include "c10d_plugin/net/messages/request_set.h"

namespace weft::collectives {
namespace {

// The smallest piece of a tree, and the smallest share of a block. Pieces are multiples of it, and
// so of every element's size.
constexpr std::size_t kPiece = std::size_t{256} << 10;
// all_reduce: where each rank sends at most so many bytes, every rank sends all of them to all.
constexpr std::size_t kAtOnceBytes = std::size_t{64} << 10;
constexpr int kAtOnceRanks = 8;
// all_reduce in shares: so many blocks are in flight at once.
constexpr std::size_t kBlocksAhead = 2;
// The largest piece. Few large messages cost less than many, whose headers, acknowledgements and
// wake-ups each take microseconds; but forwarding and reducing overlap with receiving in pieces
// only.
constexpr std::size_t kLargePiece = std::size_t{2} << 20;

// OK where all these bytes can be reduced.
Error checkReducible(const OpFingerprint& op) {
  const std::string why = whyNotReducible(op, op.bytes);
  return why.empty() ? Error::ok() : Error(ErrorCode::kInvalidArgument, op.describe() + ": " + why);
}

std::size_t pieces(std::size_t bytes, std::size_t piece) { return (bytes + piece - 1) / piece; }

// The piece in which so many bytes are broadcast: an eighth of them.
std::size_t treePiece(std::size_t bytes) {
  return std::clamp(pieces(bytes / 8, kPiece) * kPiece, kPiece, kLargePiece);
}

// One rank's share of a block. What a rank receives for kBlocksAhead blocks takes at most 16 MiB
// among up to 32 ranks.
std::size_t sharePiece(std::size_t ranks) {
  constexpr std::size_t kRoom = std::size_t{8} << 20;
  return std::clamp(kRoom / ranks / kPiece * kPiece, kPiece, kLargePiece);
}

template <typename Span>
Span pieceOf(Span data, std::size_t index, std::size_t piece) {
  const std::size_t from = index * piece;
  return data.subspan(from, std::min(piece, data.size() - from));
}

// The share of rank `index` in `data`, in whole elements.
Bytes shareOf(Bytes data, std::size_t index, std::size_t count, std::size_t element) {
  const std::size_t elements = data.size() / element;
  const std::size_t each = (elements + count - 1) / count * element;
  const std::size_t from = std::min(index * each, data.size());
  return data.subspan(from, std::min(each, data.size() - from));
}

}  // namespace

bool MessageCollectives::broadcastDown(RequestSet& requests, Bytes data, int root, unsigned step) {
  // 0 at the root. Where all places of the tree are taken, ranks that share their upper bits stay
  // together whatever the root is, and so do the ranks of a host where those are consecutive.
  const bool full = std::has_single_bit(static_cast<unsigned>(size()));
  const int place = full ? rank_ ^ root : before(rank_, root);
  const auto at = [&](int other) { return full ? other ^ root : after(other, root); };
  int parent_bit = 1;
  while (parent_bit < size() && (place & parent_bit) == 0)
    parent_bit *= 2;
  const std::size_t piece = treePiece(data.size());
  const std::size_t count = std::max<std::size_t>(1, pieces(data.size(), piece));
  std::vector<RequestSet::Part*> received;
  if (place != 0) {
    const int parent = at(place - parent_bit);
    for (std::size_t i = 0; i < count; ++i)
      received.push_back(requests.receive(parent, step, pieceOf(data, i, piece)));
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (place != 0 && !requests.wait(received[i])) return false;
    for (int bit = parent_bit / 2; bit > 0; bit /= 2) {
      if (place + bit < size()) requests.send(at(place + bit), step, pieceOf(data, i, piece));
    }
  }
  return true;
}

bool MessageCollectives::reduceUp(RequestSet& requests, const Call& call, ConstBytes in,
                                  Bytes at_root, int root) {
  const int place = before(rank_, root);
  std::vector<int> children;
  int parent = -1;
  for (int bit = 1; bit < size() && parent < 0; bit *= 2) {
    if ((place & bit) != 0) {
      parent = after(place - bit, root);
    } else if (place + bit < size()) {
      children.push_back(after(place + bit, root));
    }
  }
  const std::size_t count = std::max<std::size_t>(1, pieces(in.size(), kPiece));
  if (children.empty()) {
    for (std::size_t i = 0; i < count && parent >= 0; ++i)
      requests.send(parent, 0, pieceOf(in, i, kPiece));
    return true;
  }
  // Two sets of buffers: one piece is reduced while the next comes in.
  const std::size_t piece = std::min(kPiece, in.size());
  const std::size_t set = (children.size() + 1) * piece;
  std::byte* const buffers = scratch(2 * set);
  std::array<std::vector<RequestSet::Part*>, 2> coming;
  std::array<RequestSet::Part*, 2> going{};
  const auto post = [&](std::size_t i) {
    coming[i % 2].clear();
    for (std::size_t c = 0; c < children.size(); ++c)
      coming[i % 2].push_back(requests.receive(
          children[c], 0, {buffers + (i % 2) * set + c * piece, pieceOf(in, i, kPiece).size()}));
  };
  post(0);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + 1 < count) post(i + 1);
    std::vector<const std::byte*> inputs{pieceOf(in, i, kPiece).data()};
    for (std::size_t c = 0; c < children.size(); ++c) {
      if (!requests.wait(coming[i % 2][c])) return false;
      inputs.push_back(buffers + (i % 2) * set + c * piece);
    }
    const std::size_t bytes = pieceOf(in, i, kPiece).size();
    std::byte* const sum = parent < 0 ? pieceOf(at_root, i, kPiece).data()
                                      : buffers + (i % 2) * set + children.size() * piece;
    if (going[i % 2] != nullptr && !requests.wait(going[i % 2])) return false;
    const std::size_t elements = bytes / sizeOf(call.element);
    reduceInto(call.element, partialReduction(call.reduction), sum, inputs, elements);
    if (parent >= 0) {
      going[i % 2] = requests.send(parent, 0, {sum, bytes});
    } else {
      finishReduction(call, {sum, bytes}, size());
    }
  }
  return true;
}

Error MessageCollectives::reduce(const Call& call, Bytes data, int root) {
  const OpFingerprint what = OpFingerprint::of(Operation::kReduce, call, data.size(), root);
  if (Error error = checkReducible(what)) return error;
  RequestSet requests(*mailbox_, members_, base(call), what, call.deadline, spin_);
  reduceUp(requests, call, data, data, root);
  return requests.finish();
}

Error MessageCollectives::allReduce(const Call& call, Bytes data) {
  const OpFingerprint what = OpFingerprint::of(Operation::kAllReduce, call, data.size());
  if (Error error = checkReducible(what)) return error;
  const bool small = data.size() * static_cast<std::size_t>(size() - 1) <= kAtOnceBytes;
  if (!small) return allReduceInShares(call, data, what);
  if (size() <= kAtOnceRanks) return allReduceAtOnce(call, data, what);
  RequestSet requests(*mailbox_, members_, base(call), what, call.deadline, spin_);
  if (reduceUp(requests, call, data, data, 0)) broadcastDown(requests, data, 0, 1);
  return requests.finish();
}

// One step: every rank reduces everything, in rank order, and so to the same bits.
Error MessageCollectives::allReduceAtOnce(const Call& call, Bytes data, const OpFingerprint& what) {
  std::byte* const others = scratch(data.size() * members_.size());
  std::vector<const std::byte*> inputs;
  {
    RequestSet requests(*mailbox_, members_, base(call), what, call.deadline, spin_);
    for (int from = 0; from < size(); ++from) {
      std::byte* const into = others + data.size() * static_cast<std::size_t>(from);
      inputs.push_back(from == rank_ ? data.data() : into);
      if (from != rank_) requests.receive(from, 0, {into, data.size()});
    }
    for (int k = 1; k < size(); ++k)
      requests.send(after(rank_, k), 0, data);
    if (Error error = requests.finish()) return error;
  }
  reduceInto(call.element, call.reduction, data.data(), inputs, data.size() / sizeOf(call.element));
  return Error::ok();
}

// Block by block: each rank receives all values of its share, reduces them, and sends the result to
// all. While one block is reduced, the shares of the next are in flight.
//
// A result is received into the memory that its share was sent from, although that send may not
// have completed: the result's sender has received all of the share, so it is not sent again. The
// receive is posted after the share was sent, so this thread does not read it any more.
Error MessageCollectives::allReduceInShares(const Call& call, Bytes data,
                                            const OpFingerprint& what) {
  constexpr unsigned kValues = 0;
  constexpr unsigned kResults = 1;
  const std::size_t ranks = members_.size();
  const std::size_t element = sizeOf(call.element);
  const std::size_t piece = sharePiece(ranks);
  const std::size_t blocks = pieces(data.size(), piece * ranks);
  const std::size_t ahead = std::min(kBlocksAhead, blocks);
  // Declared before the requests, whose messages use it until they end.
  std::byte* const buffers = scratch(ahead * ranks * piece);
  RequestSet requests(*mailbox_, members_, base(call), what, call.deadline, spin_);
  std::array<std::vector<RequestSet::Part*>, kBlocksAhead> values;

  const auto share = [&](std::size_t b, int of) {
    return shareOf(pieceOf(data, b, piece * ranks), static_cast<std::size_t>(of), ranks, element);
  };
  const auto theirs = [&](std::size_t b, int of) {
    return buffers + ((b % ahead) * ranks + static_cast<std::size_t>(of)) * piece;
  };
  const auto begin = [&](std::size_t b) {
    std::vector<RequestSet::Part*>& received = values[b % ahead];
    received.clear();
    for (int k = 1; k < size(); ++k) {
      const int from = before(rank_, k);
      received.push_back(
          requests.receive(from, kValues, {theirs(b, from), share(b, rank_).size()}));
    }
    for (int k = 1; k < size(); ++k)
      requests.send(after(rank_, k), kValues, share(b, after(rank_, k)));
    for (int k = 1; k < size(); ++k)
      requests.receive(after(rank_, k), kResults, share(b, after(rank_, k)));
  };
  const auto reduceOwn = [&](std::size_t b) {
    for (RequestSet::Part* part : values[b % ahead])
      if (!requests.wait(part)) return false;
    std::vector<const std::byte*> inputs(ranks);
    for (int of = 0; of < size(); ++of)
      inputs[static_cast<std::size_t>(of)] = of == rank_ ? share(b, of).data() : theirs(b, of);
    reduceInto(call.element, call.reduction, share(b, rank_).data(), inputs,
               share(b, rank_).size() / element);
    return true;
  };

  for (std::size_t b = 0; b < ahead; ++b)
    begin(b);
  for (std::size_t b = 0; b < blocks && reduceOwn(b); ++b) {
    for (int k = 1; k < size(); ++k)
      requests.send(after(rank_, k), kResults, share(b, rank_));
    if (b + ahead < blocks) begin(b + ahead);
  }
  return requests.finish();
}

Error MessageCollectives::reduceScatter(const Call& call, std::span<const ConstBytes> in,
                                        Bytes out) {
  std::uint64_t bytes = 0;
  for (const ConstBytes& part : in)
    bytes += part.size();
  const OpFingerprint what = OpFingerprint::of(Operation::kReduceScatter, call, bytes);
  if (Error error = checkReducible(what)) return error;
  if (in.size() != members_.size() || in[static_cast<std::size_t>(rank_)].size() != out.size()) {
    return {
        ErrorCode::kInvalidArgument,
        "reduce_scatter: one input for each rank is needed, the own one as large as the output"};
  }
  const std::size_t element = sizeOf(call.element);
  const std::size_t ranks = members_.size();
  const std::size_t piece = std::min(kPiece, out.size());
  const std::size_t count = std::max<std::size_t>(1, pieces(out.size(), kPiece));
  std::byte* const buffers = scratch(2 * ranks * piece);
  RequestSet requests(*mailbox_, members_, base(call), what, call.deadline, spin_);
  const auto theirs = [&](std::size_t i, int of) {
    return buffers + ((i % 2) * ranks + static_cast<std::size_t>(of)) * piece;
  };
  std::array<std::vector<RequestSet::Part*>, 2> coming;
  const auto post = [&](std::size_t i) {
    coming[i % 2].clear();
    for (int k = 1; k < size(); ++k) {
      const int from = before(rank_, k);
      coming[i % 2].push_back(
          requests.receive(from, 0, {theirs(i, from), pieceOf(out, i, kPiece).size()}));
    }
  };
  post(0);
  // Shares may differ in size: each goes in pieces of its own number.
  for (int k = 1; k < size(); ++k) {
    const ConstBytes share = in[static_cast<std::size_t>(after(rank_, k))];
    const std::size_t its = std::max<std::size_t>(1, pieces(share.size(), kPiece));
    for (std::size_t i = 0; i < its; ++i)
      requests.send(after(rank_, k), 0, pieceOf(share, i, kPiece));
  }
  const ConstBytes own = in[static_cast<std::size_t>(rank_)];
  for (std::size_t i = 0; i < count; ++i) {
    if (i + 1 < count) post(i + 1);
    for (RequestSet::Part* part : coming[i % 2])
      if (!requests.wait(part)) return requests.finish();
    std::vector<const std::byte*> inputs(ranks);
    for (int of = 0; of < size(); ++of)
      inputs[static_cast<std::size_t>(of)] =
          of == rank_ ? pieceOf(own, i, kPiece).data() : theirs(i, of);
    const Bytes sum = pieceOf(out, i, kPiece);
    reduceInto(call.element, call.reduction, sum.data(), inputs, sum.size() / element);
  }
  return requests.finish();
}

}  // namespace weft::collectives
