// all_reduce and reduce.
//
// Small data: everybody lays all of it out, and everybody adds up all of it in the order of ranks,
// so that all get the same bits after one meeting.
//
// Large data (Rabenseifner's reduce-scatter and all-gather, on shared memory and in place): cut
// into blocks, each into one part per rank. A rank lays out the parts of a block that others add
// up; in the next round adds up its own part of it, from the others' buffers and its own memory,
// and leaves the result in the gap of its own buffer; in the round after collects the others'
// results. The three overlap on three blocks, so that a round has one meeting, and each element is
// read once from each rank's memory and written once to it.
//
// Large data of two ranks, for both: each lays out all of it, piece by piece, and adds up all of
// it. As many bytes go between the cores, in fewer steps; a tenth faster at all sizes.
//
// Data that lie in all ranks' heaps: the same blocks, added up from where the data lie and
// collected from where the results lie. Nobody writes into another rank's memory: a rank that was
// stopped in the middle may go on when the others have given up and use their memory for something
// else. One more meeting ends the operation, before which no owner touches its data.
//   R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
//   MPICH", IJHPCA 19(1), 2005.
#include "c10d_plugin/reduce_kernels.h"
#include "c10d_plugin/shm/exchange.h"
#include "transport/arena_copy.h"

namespace weft::collectives {

using shm::kCacheLine;

namespace {

constexpr int kEverywhere = -1;  // instead of a root
// A strip of data stays in the first-level cache from its addition until it is copied.
constexpr std::size_t kStrip = std::size_t{16} << 10;

}  // namespace

Error ShmCollectives::allReduce(const Call& call, Bytes data) {
  if (Error error = open(call, Operation::kAllReduce, data.size())) return error;
  return reduceTogether(data, kEverywhere);
}

Error ShmCollectives::reduce(const Call& call, Bytes data, int root) {
  if (Error error = open(call, Operation::kReduce, data.size(), root)) return error;
  if (const std::string why = checkRoot(root); !why.empty()) return refuse(why);
  return reduceTogether(data, root);
}

Error ShmCollectives::reduceTogether(Bytes data, int root) {
  if (const std::string why = checkReduction(data.size()); !why.empty()) return refuse(why);
  if (data.size() <= segment_->layout().small_bytes) {
    return reduceSmall(data, root == kEverywhere || root == rank_);
  }
  return size_ == 2 && root == kEverywhere ? allReduceAsPair(data) : reduceLarge(data, root);
}

Error ShmCollectives::reduceSmall(Bytes data, bool wanted) {
  const std::uint64_t round = rounds_.number();
  if (!data.empty()) std::memcpy(segment_->small(rank_, round), data.data(), data.size());
  if (Error error = meet()) return error;
  if (!wanted || data.empty()) return Error::ok();
  inputs_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    inputs_.push_back(rank == rank_ ? data.data() : segment_->small(rank, round));
  }
  reduceInto(record_.element, record_.reduction, data.data(), inputs_,
             data.size() / sizeOf(record_.element));
  return Error::ok();
}

// The first meeting, with what `lay_out` writes for it. Where some ranks laid out something and
// some offered their data where they lie, all lay it out, and meet again.
template <typename LayOut>
Error ShmCollectives::meetWithData(ConstBytes data, LayOut&& lay_out) {
  const bool offers = offer(std::span(&data, 1));
  const auto layOut = [&] {
    if (Error error = needBuffers()) return error;
    lay_out();
    return Error::ok();
  };
  if (!offers) {
    if (Error error = layOut()) return error;
  }
  if (Error error = meet()) return error;
  if (offers_ == 0 || offers_ == size_) return Error::ok();
  if (Error error = layOut()) return error;
  return meet();
}

Error ShmCollectives::allReduceAsPair(Bytes data) {
  const Place place{false, segment_->layout().buffer_bytes};
  const ConstBytes whole = data;
  const auto write = [&](std::size_t piece) { writePieces(std::span(&whole, 1), place, piece); };
  if (Error error = meetWithData(data, [&] { write(0); })) return error;
  if (offers_ == size_) return reduceBlocks(data, kEverywhere, true);
  const std::size_t pieces = piecesOf(data.size(), place);
  for (std::size_t next = 1;; ++next) {
    if (next < pieces) write(next);
    const std::size_t begin = (next - 1) * place.piece;
    const Bytes piece = data.subspan(begin, std::min(place.piece, data.size() - begin));
    const std::byte* const others = pieceOf(1 - rank_, place, 0);
    inputs_.assign({rank_ == 0 ? piece.data() : others, rank_ == 0 ? others : piece.data()});
    reduceInto(record_.element, record_.reduction, piece.data(), inputs_,
               piece.size() / sizeOf(record_.element));
    if (next == pieces) return Error::ok();
    if (Error error = meet()) return error;
  }
}

Error ShmCollectives::reduceLarge(Bytes data, int root) {
  if (Error error = meetWithData(data, [&] { contribute(blockOf(data, 0)); })) return error;
  return reduceBlocks(data, root, offers_ == size_);
}

Bytes ShmCollectives::blockOf(Bytes data, std::size_t number) const {
  const std::size_t blocks = blocksOf(data);
  const std::size_t size = shm::roundUp((data.size() + blocks - 1) / blocks, kCacheLine);
  const std::size_t begin = std::min(number * size, data.size());
  return data.subspan(begin, std::min(size, data.size() - begin));
}

std::size_t ShmCollectives::blocksOf(ConstBytes data) const {
  const std::size_t room = segment_->layout().buffer_bytes;
  return (data.size() + room - 1) / room;
}

// After the first meeting. `direct`: all data lie in heaps.
Error ShmCollectives::reduceBlocks(Bytes data, int root, bool direct) {
  if (Error error = findPlaces(data, root, direct)) return error;
  const std::size_t blocks = blocksOf(data);
  const bool collects = root == kEverywhere || root == rank_;
  for (std::size_t step = 1;; ++step) {
    if (step >= 2 && collects) collectParts(blockOf(data, step - 2), root);
    if (step == blocks + 1) break;
    addUpOwnPart(blockOf(data, step - 1), root);
    if (step < blocks && !direct) contribute(blockOf(data, step));
    if (Error error = meet()) return error;
  }
  return direct ? meet() : Error::ok();
}

// Where every rank's data lie, if all of them lie in heaps; else nothing: they are in buffers.
Error ShmCollectives::findPlaces(Bytes data, int root, bool direct) {
  places_.clear();
  if (!direct) return Error::ok();
  for (int rank = 0; rank < size_; ++rank) {
    const Result<const std::byte*> place =
        rank == rank_ ? Result<const std::byte*>(data.data()) : offered(rank, 0, data.size());
    if (!place.ok()) return place.error();
    places_.push_back(place.value());
  }
  // The root's results come through buffers: only the root's data may change.
  return root == kEverywhere ? Error::ok() : needBuffers();
}

// What `rank` laid out for a block in a round of buffers, or has of it where it lies.
const std::byte* ShmCollectives::blockFrom(int rank, ConstBytes block, std::uint64_t round) const {
  if (places_.empty()) return segment_->buffer(rank, round);
  return places_[static_cast<std::size_t>(rank)] +
         (block.data() - places_[static_cast<std::size_t>(rank_)]);
}

Bytes ShmCollectives::partOf(Bytes block, int rank) const {
  const auto ranks = static_cast<std::size_t>(size_);
  const std::size_t part = shm::roundUp((block.size() + ranks - 1) / ranks, kCacheLine);
  const std::size_t begin = std::min(static_cast<std::size_t>(rank) * part, block.size());
  return block.subspan(begin, std::min(part, block.size() - begin));
}

// A part lies in a buffer where it lies in its block.
void ShmCollectives::contribute(Bytes block) {
  std::byte* const buffer = segment_->buffer(rank_, rounds_.number());
  const Bytes own = partOf(block, rank_);
  const auto begin = static_cast<std::size_t>(own.data() - block.data());
  const std::size_t end = begin + own.size();
  transport::copyToArena(buffer, block.data(), begin);
  transport::copyToArena(buffer + end, block.data() + end, block.size() - end);
}

void ShmCollectives::addUpOwnPart(Bytes block, int root) {
  const Bytes own = partOf(block, rank_);
  const auto offset = static_cast<std::size_t>(own.data() - block.data());
  const std::uint64_t round = rounds_.number() - 1;
  std::byte* const shared = segment_->buffer(rank_, round) + offset;
  // Others than the root must not change their data.
  const bool keeps = root == kEverywhere || root == rank_;
  const bool lays_out = root == kEverywhere && places_.empty();
  for (std::size_t done = 0; done < own.size(); done += kStrip) {
    const std::size_t bytes = std::min(kStrip, own.size() - done);
    std::byte* const in_place = own.data() + done;
    inputs_.clear();
    for (int rank = 0; rank < size_; ++rank) {
      inputs_.push_back(rank == rank_ ? in_place : blockFrom(rank, block, round) + offset + done);
    }
    std::byte* const result = keeps ? in_place : shared + done;
    reduceInto(record_.element, record_.reduction, result, inputs_,
               bytes / sizeOf(record_.element));
    if (lays_out) transport::copyToArena(shared + done, in_place, bytes);
  }
}

void ShmCollectives::collectParts(Bytes block, int root) {
  const std::uint64_t round = rounds_.number() - 2;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const Bytes part = partOf(block, rank);
    if (part.empty()) continue;
    const auto offset = static_cast<std::size_t>(part.data() - block.data());
    const std::byte* const results =
        root == kEverywhere ? blockFrom(rank, block, round) : segment_->buffer(rank, round);
    std::memcpy(part.data(), results + offset, part.size());
  }
}

}  // namespace weft::collectives
