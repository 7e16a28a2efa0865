#include "c10d_plugin/shm/shm_collectives.h"

#include <sys/resource.h>

#include <string>
#include <utility>

#include "c10d_plugin/shm/segment/rendezvous.h"
#include "transport/memory/pages.h"

namespace weft::collectives {

using shm::Layout;
using shm::Segment;

namespace {

Layout layoutFor(const ShmOptions& options, int size) {
  std::size_t heap = options.heap_bytes;
  if (heap == 0) heap = transport::atMostQuarter(shm::kMostHeap);
  Layout layout = Layout::of(size, options.buffer_bytes, options.small_bytes, heap);
  // Where files may not be that large, a group does without a heap.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < layout.fileBytes()) {
    layout.heap_bytes = 0;
  }
  return layout;
}

}  // namespace

Result<std::unique_ptr<Collectives>> ShmCollectives::join(const ShmOptions& options,
                                                          const transport::AuthKey& key,
                                                          KeyValue& store, int rank, int size,
                                                          Deadline deadline) {
  if (size > shm::kMaxRanks)
    return transport::invalidArgument(std::to_string(size) + " ranks cannot share memory");
  Result<std::shared_ptr<Segment>> segment =
      rank == 0 ? shm::host(layoutFor(options, size), key, store, deadline)
                : shm::attach(key, store, rank, size, deadline);
  if (!segment.ok()) return segment.error();
  return std::unique_ptr<Collectives>(new ShmCollectives(segment.value(), rank));
}

Result<std::vector<std::unique_ptr<Collectives>>> ShmCollectives::inOneProcess(
    const ShmOptions& options, int size) {
  Result<std::shared_ptr<Segment>> segment = Segment::create(layoutFor(options, size));
  if (!segment.ok()) return segment.error();
  std::vector<std::unique_ptr<Collectives>> members;
  for (int rank = 0; rank < size; ++rank) {
    if (Error error = segment.value()->enter(rank)) return error;
    members.emplace_back(new ShmCollectives(segment.value(), rank));
  }
  return members;
}

ShmCollectives::ShmCollectives(std::shared_ptr<Segment> segment, int rank)
    : context_(std::move(segment), rank) {}

Error ShmCollectives::barrier(const Call& call) {
  if (Error error = context_.begin(call, Operation::kBarrier, 0)) return error;
  return context_.meet();
}

void ShmCollectives::abort(Error reason) {
  const ErrorCode code = reason ? reason.code() : ErrorCode::kShutdown;
  context_.segment().fail(
      {code, "rank " + std::to_string(rank()) + " ended the group: " + reason.text()});
}

}  // namespace weft::collectives
