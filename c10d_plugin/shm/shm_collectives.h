// ShmCollectives: the collectives of ranks on one host, through memory that all of them map.
// Once the group has formed nothing goes through a socket, and no thread is started.
//
// The operations that move data are in move_data.cpp, those that reduce them in all_reduce.cpp and
// reduce_scatter.cpp; docs/design/process_group_internals.md explains the algorithms.
//
// Threads: as Collectives says. Ranks may be processes or, within one process, threads.
// Failure: as Collectives says. The ranks that wait for a rank notice within some 100 ms that it
// died (kill -9 too) or left. A difference between the ranks' calls is kInvalidArgument on all of
// them with the same text, before any result is written, and the group goes on.
// Nothing is left behind, whoever dies when: the memory has no name.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/shm/context.h"
#include "c10d_plugin/store/key_value.h"
#include "transport/auth/auth_key.h"

namespace weft::collectives {

struct ShmOptions {
  // All ranks use rank 0's options; 0 means the default.
  //
  // The size of each of a rank's three buffers for large data, rounded to 4 KiB; their memory is
  // taken when it is first needed. Default: 512 KiB, or 256 KiB for more than eight ranks.
  std::size_t buffer_bytes = 0;
  // Data up to this size go through a rank's small buffers, and all ranks reduce all of them.
  // Default: 32 KiB.
  std::size_t small_bytes = 0;
  // The size of the heap of each rank, for allocate(); its memory is taken when it is needed.
  // Default: a quarter of the machine's memory, at most 64 GiB.
  std::size_t heap_bytes = 0;
};

class ShmCollectives final : public Collectives {
 public:
  // All `size` ranks, on one host, call this with the same `store` and the group's `key`; it
  // returns when this rank is in, on rank 0 when it has served all. Rank 0 makes the memory and
  // gives it to the others over a Unix socket: to processes of the same user that know the key. If
  // one rank fails (other hosts, other users, no memory, kTimeout naming the missing ranks), the
  // others fail, too, here or in their first operation, at the deadline at the latest. Only a rank
  // that is in is known to be dead when it dies: the ranks tell each other that they are
  // (firstProblem) before the first operation.
  static Result<std::unique_ptr<Collectives>> join(const ShmOptions& options,
                                                   const transport::AuthKey& key, KeyValue& store,
                                                   int rank, int size, Deadline deadline);
  // Makes all ranks in this process; a thread of its own uses each.
  static Result<std::vector<std::unique_ptr<Collectives>>> inOneProcess(const ShmOptions& options,
                                                                        int size);
  ~ShmCollectives() override { ShmCollectives::leave(); }

  int rank() const noexcept override { return context_.rank(); }
  int size() const noexcept override { return context_.size(); }

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
  void leave() noexcept override { context_.segment().leave(rank()); }
  bool outlivesDifferentCalls() const noexcept override { return true; }
  std::vector<int> awaited() const override { return context_.awaited(); }
  std::vector<double> waited() const override { return context_.waited(); }

  // Memory that the other ranks can read and write in place (segment/heap.h): operations on more
  // than small_bytes of it copy once, or not at all.
  transport::OwnedBuffer allocate(std::size_t size) override { return context_.heap().take(size); }
  bool allocates() const noexcept override { return context_.segment().layout().heap_bytes != 0; }

 private:
  ShmCollectives(std::shared_ptr<shm::Segment> segment, int rank);

  shm::Context context_;
};

}  // namespace weft::collectives
