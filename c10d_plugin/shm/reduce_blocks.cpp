// Large data of any number of ranks: Rabenseifner's reduce-scatter and all-gather, on shared memory
// and in place.
//
// The data are cut into blocks, each block into one part per rank. For block b,
//   in step b    a rank copies the parts that the others reduce into its buffer, with a gap for its
//                own part;
//   in step b+1  it reduces its own part, from the others' buffers and its own memory, and leaves
//                the result in that gap;
//   in step b+2  it collects the others' results.
// Three blocks overlap, so a step has one meeting, and each element is read once from each rank's
// memory and written once to it.
//
//   R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
//   MPICH", IJHPCA 19(1), 2005.
#include <algorithm>
#include <cstring>

#include "c10d_plugin/shm/reduction.h"
#include "transport/memory/fast_memcpy.h"

namespace weft::collectives::shm {
namespace {

class BlockReduction {
 public:
  BlockReduction(Context& context, Bytes data, int root)
      : context_(context),
        segment_(context.segment()),
        data_(data),
        root_(root),
        rank_(context.rank()) {
    const std::size_t room = segment_.layout().buffer_bytes;
    blocks_ = piecesOf(data.size(), room);
    block_bytes_ = roundUp((data.size() + blocks_ - 1) / blocks_, kCacheLine);
  }

  Error run() {
    if (Error error = meetWithData(context_, data_, [&] { contribute(block(0)); })) return error;
    if (context_.direct().all()) return reduceDirect(context_, data_, root_);
    for (std::size_t step = 1;; ++step) {
      if (step >= 2 && wantsResult(context_, root_)) collectParts(block(step - 2));
      if (step == blocks_ + 1) return Error::ok();
      reduceOwnPart(block(step - 1));
      if (step < blocks_) contribute(block(step));
      if (Error error = context_.meet()) return error;
    }
  }

 private:
  Bytes block(std::size_t number) const { return pieceOf(data_, number, block_bytes_); }
  Bytes part(Bytes block, int rank) const { return partOf(block, rank, context_.size()); }
  static std::size_t offsetIn(Bytes block, Bytes part) {
    return static_cast<std::size_t>(part.data() - block.data());
  }

  // A part is at the same offset in a buffer as in its block.
  void contribute(Bytes block) const {
    std::byte* const buffer = segment_.buffer(rank_, context_.step());
    const Bytes own = part(block, rank_);
    const std::size_t begin = offsetIn(block, own);
    const std::size_t end = begin + own.size();
    transport::fastMemcpy(buffer, block.data(), begin);
    transport::fastMemcpy(buffer + end, block.data() + end, block.size() - end);
  }

  void reduceOwnPart(Bytes block) {
    const Bytes own = part(block, rank_);
    const std::size_t offset = offsetIn(block, own);
    const std::uint64_t step = context_.step() - 1;
    std::byte* const shared = segment_.buffer(rank_, step) + offset;
    // A rank that does not want the result must not change its data.
    const bool in_place = wantsResult(context_, root_);
    auto& inputs = context_.scratch().inputs;
    for (std::size_t done = 0; done < own.size(); done += kStrip) {
      const std::size_t bytes = std::min(kStrip, own.size() - done);
      std::byte* const mine = own.data() + done;
      inputs.clear();
      for (int rank = 0; rank < context_.size(); ++rank)
        inputs.push_back(rank == rank_ ? mine : segment_.buffer(rank, step) + offset + done);
      reduceInputs(context_, in_place ? mine : shared + done, bytes);
      if (root_ == kEverywhere) transport::fastMemcpy(shared + done, mine, bytes);
    }
  }

  void collectParts(Bytes block) const {
    const std::uint64_t step = context_.step() - 2;
    for (int rank = 0; rank < context_.size(); ++rank) {
      const Bytes theirs = part(block, rank);
      if (rank == rank_ || theirs.empty()) continue;
      std::memcpy(theirs.data(), segment_.buffer(rank, step) + offsetIn(block, theirs),
                  theirs.size());
    }
  }

  Context& context_;
  const Segment& segment_;
  const Bytes data_;
  const int root_;
  const int rank_;
  std::size_t blocks_ = 0;
  std::size_t block_bytes_ = 0;
};

}  // namespace

Error reduceBlocks(Context& context, Bytes data, int root) {
  return BlockReduction(context, data, root).run();
}

}  // namespace weft::collectives::shm
