// ShmCollectives: the collectives of ranks on one host, through memory that all of them map.
// Nothing goes through a socket once the group stands, and no thread is started.
//
// How the algorithms work: docs/design/process_group_internals.md. In short:
// each rank has three buffers in the segment. Time goes in rounds: in a round every rank writes
// into its next buffer and reads what others wrote in the two rounds before; between rounds
// each waits for all. So one wait per round is all the synchronisation there is, the copies of one
// block overlap with the arithmetic of the block before, and the next operation needs no barrier.
// Data that lie in memory of allocate()'s need no buffers: others use them where they lie, between
// two waits.
//
// Threads: as Collectives says. Ranks may be processes or, within one process, threads.
// Failure: as Collectives says. A rank that dies (kill -9 too) or leaves is noticed by those who
// wait for it within some 100 ms. A difference between the ranks' calls is kInvalidArgument on all
// of them with the same text, before any result is written, and the group goes on.
// Nothing is left behind, whoever dies when: the memory has no name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/key_value.h"
#include "c10d_plugin/shm/segment/call_record.h"
#include "c10d_plugin/shm/segment/heap.h"
#include "c10d_plugin/shm/segment/segment.h"
#include "c10d_plugin/shm/sync/step_barrier.h"

namespace weft::collectives {

struct ShmOptions {
  // Of each of a rank's three buffers for large data, touched when first needed; rounded to 4 KiB.
  // 0: 512 KiB, or 256 KiB for more than eight ranks. All ranks use rank 0's.
  std::size_t buffer_bytes = 0;
  // Up to here data goes through a rank's small slots, and is added up by all ranks at once.
  // 0: 32 KiB. Likewise.
  std::size_t small_bytes = 0;
  // Addresses for tensors of allocate()'s, per rank; memory is taken when they need it.
  // 0: a quarter of the machine's memory, at most 64 GiB. Likewise.
  std::size_t heap_bytes = 0;
};

class ShmCollectives final : public Collectives {
 public:
  // Called by all `size` ranks, on one host, with the same `store`; returns on all when all are
  // there. Rank 0 makes the memory and hands it to the others over a Unix socket, to processes of
  // the same user that know a secret from the store.
  // Any failure (other hosts, other users, no memory, kTimeout naming the missing ranks): the
  // others fail too, at the deadline at the latest.
  static Result<std::unique_ptr<Collectives>> join(const ShmOptions& options, KeyValue& store,
                                                   int rank, int size, Deadline deadline);
  // All ranks in this process, each to be used by a thread of its own.
  static Result<std::vector<std::unique_ptr<Collectives>>> inOneProcess(const ShmOptions& options,
                                                                        int size);
  ~ShmCollectives() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  Error barrier(const Call& call) override;
  Error broadcast(const Call& call, Bytes data, int root) override;
  Error allReduce(const Call& call, Bytes data) override;
  Error reduce(const Call& call, Bytes data, int root) override;
  Error allGather(const Call& call, ConstBytes in, std::span<const Bytes> out) override;
  Error gather(const Call& call, ConstBytes in, std::span<const Bytes> out, int root) override;
  Error scatter(const Call& call, std::span<const ConstBytes> in, Bytes out, int root) override;
  Error reduceScatter(const Call& call, std::span<const ConstBytes> in, Bytes out) override;
  Error allToAll(const Call& call, std::span<const ConstBytes> in,
                 std::span<const Bytes> out) override;

  void abort(Error reason) override;

  // Memory that the others can read and write where it lies (heap.h): operations on more than
  // small_bytes of it copy once, or not at all.
  transport::OwnedBuffer allocate(std::size_t size) override { return heap_->take(size); }
  bool allocates() const noexcept override { return segment_->layout().heap_bytes != 0; }

 private:
  // Where a rank lays what it has for others: its small slot if all of it fits there, else piece
  // by piece in its buffers.
  struct BufferSlot {
    bool small = true;
    std::size_t piece = 0;  // bytes of room for each part
  };

  ShmCollectives(std::shared_ptr<shm::Segment> segment, int rank);

  // --- Every operation (shm_collectives.cpp, compare.cpp)

  // Remembers what was asked. An error: the group has ended.
  Error open(const Call& call, Operation operation, std::size_t bytes, int root = -1);
  // Ends the round: all others have ended it as well. The first meeting of an operation compares
  // what the ranks asked for.
  Error meet();
  // Instead of the operation: the others meet this rank and fail too. Returns the reason.
  Error refuse(const std::string& why);
  // Why the arguments cannot be; empty: they can.
  std::string checkRoot(int root) const;
  std::string checkReduction(std::size_t bytes) const;
  Error compare();
  std::string differenceInSizes(std::span<const shm::CallRecord> records) const;
  // Tells the others the sizes of this rank's parts, before the first meeting; what others told, in
  // the round after it.
  template <typename Part>
  void tell(shm::SizeTable table, std::span<const Part> parts, bool equal_on_all);
  std::size_t told(int rank, shm::SizeTable table, int index) const;

  // --- Moving data (exchange.cpp)

  BufferSlot bufferSlotFor(std::size_t largest_part, int parts) const;
  static std::size_t piecesOf(std::size_t bytes, const BufferSlot& place);
  // Of what `rank` has, which is one piece if it is to be read where it lies.
  std::size_t piecesFrom(int rank, std::size_t bytes, const BufferSlot& place) const;
  Error needBuffers();
  // Writes parts piece by piece, one per round, while consume(n) takes piece n of what the others
  // wrote a round before. `learn`, after the first meeting: how many pieces there are.
  template <typename Learn, typename Consume>
  Error exchange(std::span<const ConstBytes> parts, const BufferSlot& place, Learn&& learn,
                 Consume&& consume);
  void writePieces(std::span<const ConstBytes> parts, const BufferSlot& place, std::size_t number);
  // Piece `number` of what `rank` laid into the `slot`th part of its place, into its part of `out`.
  Error readPiece(int rank, const BufferSlot& place, int slot, std::size_t number, Bytes out);
  const std::byte* pieceOf(int rank, const BufferSlot& place, int slot) const;
  // All parts but the own, in order of rank; and where in them rank `reader` finds its own.
  std::span<const ConstBytes> othersOf(std::span<const ConstBytes> parts);
  static int slotOf(int reader, int writer) { return reader < writer ? reader : reader - 1; }

  // --- Data that lie in heaps (direct.cpp)

  // Says in the record that these parts are to be read where they lie. False: they lie elsewhere.
  bool offer(std::span<const ConstBytes> parts);
  // Who did, learnt in the round after the first meeting.
  void noteOffers();
  bool isDirect(int rank) const { return direct_[static_cast<std::size_t>(rank)] != 0; }
  // What `rank` offered in a slot, asked in that round. Not within its heap: the group ends.
  Result<std::byte*> offered(int rank, int slot, std::size_t bytes);
  void stopLending();

  // --- Adding up (all_reduce.cpp)

  Error reduceTogether(Bytes data, int root);
  Error reduceSmall(Bytes data, bool wanted);
  template <typename LayOut>
  Error meetWithData(ConstBytes data, LayOut&& lay_out);
  Error allReduceAsPair(Bytes data);
  Error reduceLarge(Bytes data, int root);
  Error reduceDirect(Bytes data, int root);
  void reduceStrip(std::size_t at, std::size_t bytes, int root);
  Error findOffers(std::size_t bytes);
  Bytes partOf(Bytes block, int rank) const;
  void contribute(Bytes block);
  void addUpOwnPart(Bytes block, int root);
  void collectParts(Bytes block);

  const std::shared_ptr<shm::Segment> segment_;
  const std::shared_ptr<shm::Heap> heap_;
  const int rank_;
  const int size_;
  shm::StepBarrier steps_;

  // The operation that runs.
  shm::CallRecord record_;
  Deadline deadline_;
  bool compared_ = false;
  unsigned parity_ = 0;               // of the round in which it began
  std::vector<std::uint8_t> direct_;  // by rank
  int offers_ = 0;                    // how many of them

  bool have_buffers_ = false;
  // Kept for their memory.
  std::vector<const std::byte*> inputs_;
  std::vector<ConstBytes> others_;
  std::vector<std::byte*> places_;
};

}  // namespace weft::collectives
