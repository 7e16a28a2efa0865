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
// Data that lie in all ranks' heaps: a rank adds up its part of all of them where it lies and
// writes the result there; one meeting before and one after it.
//   R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
//   MPICH", IJHPCA 19(1), 2005.
#include "c10d_plugin/core/reduce_kernels.h"
#include "c10d_plugin/shm/exchange.h"
#include "transport/memory/fast_memcpy.h"

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
  const std::uint64_t round = steps_.number();
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
  const BufferSlot place{false, segment_->layout().buffer_bytes};
  const ConstBytes whole = data;
  const auto write = [&](std::size_t piece) { writePieces(std::span(&whole, 1), place, piece); };
  if (Error error = meetWithData(data, [&] { write(0); })) return error;
  if (offers_ == size_) return reduceDirect(data, kEverywhere);
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
  const std::size_t room = segment_->layout().buffer_bytes;
  const std::size_t blocks = (data.size() + room - 1) / room;
  const std::size_t size = shm::roundUp((data.size() + blocks - 1) / blocks, kCacheLine);
  const auto block = [&](std::size_t number) {
    const std::size_t begin = std::min(number * size, data.size());
    return data.subspan(begin, std::min(size, data.size() - begin));
  };
  if (Error error = meetWithData(data, [&] { contribute(block(0)); })) return error;
  if (offers_ == size_) return reduceDirect(data, root);
  const bool collects = root == kEverywhere || root == rank_;
  for (std::size_t step = 1;; ++step) {
    if (step >= 2 && collects) collectParts(block(step - 2));
    if (step == blocks + 1) return Error::ok();
    addUpOwnPart(block(step - 1), root);
    if (step < blocks) contribute(block(step));
    if (Error error = meet()) return error;
  }
}

// All data lie in heaps. Each rank adds up its own part where it lies in all of them, and writes
// the result to where it is wanted.
Error ShmCollectives::reduceDirect(Bytes data, int root) {
  places_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    const Result<std::byte*> place =
        rank == rank_ ? Result<std::byte*>(data.data()) : offered(rank, 0, data.size());
    if (!place.ok()) return place.error();
    places_.push_back(place.value());
  }
  if (segment_->beginWriting(rank_)) {
    const Bytes own = partOf(data, rank_);
    const auto begin = static_cast<std::size_t>(own.data() - data.data());
    for (std::size_t done = 0; done < own.size() && !segment_->failed(); done += kStrip) {
      reduceStrip(begin + done, std::min(kStrip, own.size() - done), root);
    }
    segment_->endWriting(rank_);
  }
  return meet();
}

void ShmCollectives::reduceStrip(std::size_t at, std::size_t bytes, int root) {
  inputs_.clear();
  for (const std::byte* const place : places_)
    inputs_.push_back(place + at);
  const int first = root == kEverywhere ? rank_ : root;
  std::byte* const result = places_[static_cast<std::size_t>(first)] + at;
  reduceInto(record_.element, record_.reduction, result, inputs_, bytes / sizeOf(record_.element));
  for (int rank = 0; root == kEverywhere && rank < size_; ++rank) {
    if (rank == rank_) continue;
    transport::fastMemcpy(places_[static_cast<std::size_t>(rank)] + at, result, bytes);
  }
}

Bytes ShmCollectives::partOf(Bytes block, int rank) const {
  const auto ranks = static_cast<std::size_t>(size_);
  const std::size_t part = shm::roundUp((block.size() + ranks - 1) / ranks, kCacheLine);
  const std::size_t begin = std::min(static_cast<std::size_t>(rank) * part, block.size());
  return block.subspan(begin, std::min(part, block.size() - begin));
}

// A part lies in a buffer where it lies in its block.
void ShmCollectives::contribute(Bytes block) {
  std::byte* const buffer = segment_->buffer(rank_, steps_.number());
  const Bytes own = partOf(block, rank_);
  const auto begin = static_cast<std::size_t>(own.data() - block.data());
  const std::size_t end = begin + own.size();
  transport::fastMemcpy(buffer, block.data(), begin);
  transport::fastMemcpy(buffer + end, block.data() + end, block.size() - end);
}

void ShmCollectives::addUpOwnPart(Bytes block, int root) {
  const Bytes own = partOf(block, rank_);
  const auto offset = static_cast<std::size_t>(own.data() - block.data());
  const std::uint64_t round = steps_.number() - 1;
  std::byte* const shared = segment_->buffer(rank_, round) + offset;
  // Others than the root must not change their data.
  const bool keeps = root == kEverywhere || root == rank_;
  for (std::size_t done = 0; done < own.size(); done += kStrip) {
    const std::size_t bytes = std::min(kStrip, own.size() - done);
    std::byte* const in_place = own.data() + done;
    inputs_.clear();
    for (int rank = 0; rank < size_; ++rank) {
      inputs_.push_back(rank == rank_ ? in_place : segment_->buffer(rank, round) + offset + done);
    }
    std::byte* const result = keeps ? in_place : shared + done;
    reduceInto(record_.element, record_.reduction, result, inputs_,
               bytes / sizeOf(record_.element));
    if (root == kEverywhere) transport::fastMemcpy(shared + done, in_place, bytes);
  }
}

void ShmCollectives::collectParts(Bytes block) {
  const std::uint64_t round = steps_.number() - 2;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const Bytes part = partOf(block, rank);
    if (part.empty()) continue;
    const auto offset = static_cast<std::size_t>(part.data() - block.data());
    std::memcpy(part.data(), segment_->buffer(rank, round) + offset, part.size());
  }
}

}  // namespace weft::collectives
