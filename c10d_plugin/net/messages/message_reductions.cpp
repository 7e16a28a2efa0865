// The reductions of MessageCollectives.
#include <algorithm>
#include <array>
#include <functional>

#include "c10d_plugin/core/pieces.h"
#include "c10d_plugin/core/reduce_kernels.h"
#include "c10d_plugin/net/messages/message_collectives.h"

namespace weft::collectives {
namespace {

// If each rank sends at most so many bytes, all of them are sent at once.
constexpr std::size_t kAtOnceBytes = std::size_t{64} << 10;
// How many blocks are in flight at once.
constexpr std::size_t kBlocksAhead = 2;
// The steps of a block: the values go to the ranks that reduce them, then the results go back.
constexpr unsigned kValues = 0;
constexpr unsigned kResults = 1;

// Ok if so many bytes can be reduced.
Error checkReducible(const OpFingerprint& op, std::size_t bytes) {
  const std::string why = whyNotReducible(op, bytes);
  return why.empty() ? Error::ok() : Error(ErrorCode::kInvalidArgument, op.describe() + ": " + why);
}

// The size of a rank's share of a block. With up to 32 ranks, what a rank receives for kBlocksAhead
// blocks takes at most 16 MiB.
std::size_t sharePiece(std::size_t ranks) {
  constexpr std::size_t kRoom = std::size_t{8} << 20;
  return std::clamp(kRoom / ranks / kPiece * kPiece, kPiece, kLargePiece);
}

// The share of rank `index` in `data`, in whole elements.
Bytes shareOf(Bytes data, std::size_t index, std::size_t count, std::size_t element) {
  const std::size_t elements = data.size() / element;
  return pieceOf(data, index, (elements + count - 1) / count * element);
}

}  // namespace

// How an operation reduces its data block by block.
struct MessageCollectives::Shares {
  std::size_t blocks;
  std::size_t piece;  // the largest share
  // The share of a rank in a block.
  std::function<ConstBytes(std::size_t block, int of)> values;
  // Where the result of this rank's share goes; null: scratch memory.
  std::function<std::byte*(std::size_t block)> result;
  // Called after the values of a block were sent.
  std::function<void(RequestSet& requests, std::size_t block)> begun;
  // Sends the result on. Returns the last message, for which a result in scratch memory must wait.
  std::function<RequestSet::Request*(RequestSet& requests, std::size_t block, ConstBytes result)>
      done;
};

Error MessageCollectives::allReduce(const Call& call, Bytes data) {
  return reduceTo(call, data, kEverywhere,
                  OpFingerprint::of(Operation::kAllReduce, call, data.size()));
}

Error MessageCollectives::reduce(const Call& call, Bytes data, int root) {
  return reduceTo(call, data, root, OpFingerprint::of(Operation::kReduce, call, data.size(), root));
}

Error MessageCollectives::reduceTo(const Call& call, Bytes data, int root,
                                   const OpFingerprint& what) {
  if (Error error = checkReducible(what, data.size())) return error;
  if (size() == 1) return begin(call, what).finish();
  const bool small = data.size() * static_cast<std::size_t>(size() - 1) <= kAtOnceBytes;
  return small ? reduceAtOnce(call, data, root, what) : reduceInShares(call, data, root, what);
}

// One step: every rank that wants the result reduces all data in rank order, so all get the same
// bits.
Error MessageCollectives::reduceAtOnce(const Call& call, Bytes data, int root,
                                       const OpFingerprint& what) {
  const bool wanted = wantsResult(root);
  std::byte* const others = scratch(wanted ? data.size() * members_.size() : 0);
  std::vector<const std::byte*> inputs;
  {
    RequestSet requests = begin(call, what);
    for (int from = 0; from < size() && wanted; ++from) {
      std::byte* const into = others + data.size() * static_cast<std::size_t>(from);
      inputs.push_back(from == rank_ ? data.data() : into);
      if (from != rank_) requests.receive(from, kValues, {into, data.size()});
    }
    for (int k = 1; k < size(); ++k) {
      const int to = after(rank_, k);
      if (root == kEverywhere || to == root) requests.send(to, kValues, data);
    }
    if (Error error = requests.finish()) return error;
  }
  if (!wanted) return Error::ok();
  reduceInto(call.element, call.reduction, data.data(), inputs, data.size() / sizeOf(call.element));
  return Error::ok();
}

// Each rank reduces its share of a block and sends the result to all, or to the root.
//
// A result is received into the memory that its share was sent from, although that send may not
// have completed: the result's sender has received all of the share, so it is not sent again. The
// receive is posted after the share was sent, so this thread does not read it any more.
Error MessageCollectives::reduceInShares(const Call& call, Bytes data, int root,
                                         const OpFingerprint& what) {
  const std::size_t ranks = members_.size();
  const std::size_t piece = sharePiece(ranks);
  const bool wanted = wantsResult(root);
  const auto share = [&](std::size_t block, int of) {
    return shareOf(pieceOf(data, block, piece * ranks), static_cast<std::size_t>(of), ranks,
                   sizeOf(call.element));
  };
  return reduceShares(
      call, what,
      {piecesOf(data.size(), piece * ranks), piece, share,
       [&](std::size_t block) { return wanted ? share(block, rank_).data() : nullptr; },
       [&](RequestSet& requests, std::size_t block) {
         for (int k = 1; k < size() && wanted; ++k)
           requests.receive(after(rank_, k), kResults, share(block, after(rank_, k)));
       },
       [&](RequestSet& requests, std::size_t, ConstBytes result) {
         RequestSet::Request* last = nullptr;
         for (int k = 1; k < size(); ++k) {
           const int to = after(rank_, k);
           if (root == kEverywhere || to == root) last = requests.send(to, kResults, result);
         }
         return last;
       }});
}

Error MessageCollectives::reduceScatter(const Call& call, std::span<const ConstBytes> in,
                                        Bytes out) {
  OpFingerprint what = OpFingerprint::of(Operation::kReduceScatter, call, 0);
  std::size_t largest = 0;
  SizesDigest digest;
  digest.add(call.sizes_digest);
  for (const ConstBytes& part : in) {
    largest = std::max(largest, part.size());
    what.bytes += part.size();
    digest.add(part.size());
  }
  what.root_or_sizes = static_cast<std::int32_t>(digest.value());
  for (const ConstBytes& part : in)
    if (Error error = checkReducible(what, part.size())) return error;
  if (in.size() != members_.size() || in[static_cast<std::size_t>(rank_)].size() != out.size()) {
    return {
        ErrorCode::kInvalidArgument,
        "reduce_scatter: one input for each rank is needed, the own one as large as the output"};
  }
  if (size() == 1) {
    copyOwn(in[0], out);
    return begin(call, what).finish();
  }
  const std::size_t piece =
      std::min(sharePiece(members_.size()), std::max<std::size_t>(1, largest));
  return reduceShares(call, what,
                      {std::max<std::size_t>(1, piecesOf(largest, piece)), piece,
                       [&](std::size_t block, int of) {
                         return pieceOf(in[static_cast<std::size_t>(of)], block, piece);
                       },
                       [&](std::size_t block) { return pieceOf(out, block, piece).data(); },
                       [](RequestSet&, std::size_t) {},
                       [](RequestSet&, std::size_t, ConstBytes) { return nullptr; }});
}

// Each rank receives all values of its share, and reduces them in rank order. While one block is
// reduced, the shares of the next are in flight.
Error MessageCollectives::reduceShares(const Call& call, const OpFingerprint& what,
                                       const Shares& shares) {
  const std::size_t ranks = members_.size();
  const std::size_t ahead = std::min(kBlocksAhead, shares.blocks);
  // Taken before the requests, whose messages use it until they end.
  std::byte* const buffers = scratch(ahead * ranks * shares.piece);
  RequestSet requests = begin(call, what);
  std::array<std::vector<RequestSet::Request*>, kBlocksAhead> coming;
  std::array<RequestSet::Request*, kBlocksAhead> going{};  // from scratch memory

  const auto theirs = [&](std::size_t block, int of) {
    return buffers + ((block % ahead) * ranks + static_cast<std::size_t>(of)) * shares.piece;
  };
  const auto begin_block = [&](std::size_t block) {
    std::vector<RequestSet::Request*>& received = coming[block % ahead];
    received.clear();
    for (int k = 1; k < size(); ++k) {
      const int from = before(rank_, k);
      received.push_back(requests.receive(
          from, kValues, {theirs(block, from), shares.values(block, rank_).size()}));
    }
    for (int k = 1; k < size(); ++k)
      requests.send(after(rank_, k), kValues, shares.values(block, after(rank_, k)));
    shares.begun(requests, block);
  };
  const auto reduce_own = [&](std::size_t block) {
    for (RequestSet::Request* request : coming[block % ahead])
      if (!requests.wait(request)) return false;
    RequestSet::Request*& sent = going[block % ahead];
    if (sent != nullptr && !requests.wait(sent)) return false;
    const ConstBytes own = shares.values(block, rank_);
    std::vector<const std::byte*> inputs(ranks);
    for (int of = 0; of < size(); ++of)
      inputs[static_cast<std::size_t>(of)] = of == rank_ ? own.data() : theirs(block, of);
    std::byte* const wanted = shares.result(block);
    std::byte* const result = wanted != nullptr ? wanted : theirs(block, rank_);
    reduceInto(call.element, call.reduction, result, inputs, own.size() / sizeOf(call.element));
    RequestSet::Request* const last = shares.done(requests, block, {result, own.size()});
    sent = wanted == nullptr ? last : nullptr;
    return true;
  };

  for (std::size_t block = 0; block < ahead; ++block)
    begin_block(block);
  for (std::size_t block = 0; block < shares.blocks && reduce_own(block); ++block)
    if (block + ahead < shares.blocks) begin_block(block + ahead);
  return requests.finish();
}

}  // namespace weft::collectives
