#include "c10d_plugin/shm/shm_collectives.h"

#include <sys/resource.h>

#include <string>
#include <utility>

#include "c10d_plugin/shm/join/rendezvous.h"
#include "transport/memory/pages.h"

namespace weft::collectives {

using shm::Layout;
using shm::Segment;

namespace {

Layout layoutFor(const ShmOptions& options, int size) {
  std::size_t heap = options.heap_bytes;
  if (heap == 0) heap = transport::atMostQuarter(shm::kMostHeap);
  Layout layout = Layout::of(size, options.buffer_bytes, options.small_bytes, heap);
  // Where files may not be that large, a group does without.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < layout.fileBytes()) {
    layout.heap_bytes = 0;
  }
  return layout;
}

}  // namespace

Result<std::unique_ptr<Collectives>> ShmCollectives::join(const ShmOptions& options,
                                                          KeyValue& store, int rank, int size,
                                                          Deadline deadline) {
  if (size < 1 || size > shm::kMaxRanks || rank < 0 || rank >= size) {
    return Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) + " of " +
                                                  std::to_string(size) +
                                                  " cannot share memory with the others");
  }
  Result<std::shared_ptr<Segment>> segment =
      rank == 0 ? shm::host(layoutFor(options, size), store, deadline)
                : shm::attach(store, rank, size, deadline);
  if (!segment.ok()) return segment.error();
  std::unique_ptr<Collectives> member(new ShmCollectives(segment.value(), rank));
  if (Error error = shm::awaitAll(*segment.value(), rank, deadline)) return error;
  return member;
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
    : segment_(std::move(segment)),
      heap_(std::make_shared<shm::Heap>(segment_, rank)),
      rank_(rank),
      size_(segment_->layout().ranks),
      steps_(*segment_, rank),
      direct_(static_cast<std::size_t>(size_)) {}

ShmCollectives::~ShmCollectives() { segment_->leave(rank_); }

void ShmCollectives::abort(Error reason) {
  const ErrorCode code = reason ? reason.code() : ErrorCode::kShutdown;
  segment_->fail({code, "rank " + std::to_string(rank_) + " ended the group: " + reason.text()});
}

Error ShmCollectives::barrier(const Call& call) {
  if (Error error = open(call, Operation::kBarrier, 0)) return error;
  return meet();
}

Error ShmCollectives::open(const Call& call, Operation operation, std::size_t bytes, int root) {
  if (segment_->failed()) return segment_->failure();
  record_.sequence = call.sequence;
  record_.bytes = bytes;
  record_.shapes = 0;
  record_.root = root;
  record_.operation = operation;
  record_.element = call.element;
  record_.reduction = call.reduction;
  record_.direct = false;
  deadline_ = call.deadline;
  compared_ = false;
  parity_ = static_cast<unsigned>(steps_.number() & 1);
  return Error::ok();
}

Error ShmCollectives::meet() {
  const bool first = !compared_;
  if (first) segment_->control(rank_).records[parity_] = record_;
  if (Error error = steps_.next(record_, deadline_, first)) {
    stopLending();
    return error;
  }
  if (!first) return Error::ok();
  compared_ = true;
  noteOffers();
  return compare();
}

Error ShmCollectives::refuse(const std::string& why) {
  const Error reason(ErrorCode::kInvalidArgument, describe(record_) + ": " + why);
  record_.operation = Operation::kRefused;
  const Error error = meet();
  return error.code() == ErrorCode::kInvalidArgument ? reason : error;
}

std::string ShmCollectives::checkRoot(int root) const {
  if (root >= 0 && root < size_) return {};
  return "root " + std::to_string(root) + " is none of the " + std::to_string(size_) + " ranks";
}

std::string ShmCollectives::checkReduction(std::size_t bytes) const {
  if (!canReduce(record_.element, record_.reduction)) {
    return std::string("there is no ") + collectives::toString(record_.reduction) + " of " +
           collectives::toString(record_.element);
  }
  if (bytes % sizeOf(record_.element) == 0) return {};
  return std::to_string(bytes) + " bytes are no whole number of elements";
}

}  // namespace weft::collectives
