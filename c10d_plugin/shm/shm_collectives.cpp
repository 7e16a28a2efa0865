#include "c10d_plugin/shm/shm_collectives.h"

#include <string>
#include <utility>

#include "c10d_plugin/shm/rendezvous.h"

namespace weft::collectives {

using shm::Layout;
using shm::Segment;

Result<std::unique_ptr<Collectives>> ShmCollectives::join(const ShmOptions& options,
                                                          KeyValue& store, int rank, int size,
                                                          Deadline deadline) {
  if (size < 1 || size > shm::kMaxRanks || rank < 0 || rank >= size) {
    return Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) + " of " +
                                                  std::to_string(size) +
                                                  " cannot share memory with the others");
  }
  Result<std::shared_ptr<Segment>> segment =
      rank == 0
          ? shm::host(Layout::of(size, options.buffer_bytes, options.small_bytes), store, deadline)
          : shm::attach(store, rank, size, deadline);
  if (!segment.ok()) return segment.error();
  std::unique_ptr<Collectives> member(new ShmCollectives(segment.value(), rank));
  if (Error error = shm::awaitAll(*segment.value(), rank, deadline)) return error;
  return member;
}

Result<std::vector<std::unique_ptr<Collectives>>> ShmCollectives::inOneProcess(
    const ShmOptions& options, int size) {
  Result<std::shared_ptr<Segment>> segment =
      Segment::create(Layout::of(size, options.buffer_bytes, options.small_bytes));
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
      rank_(rank),
      size_(segment_->layout().ranks),
      rounds_(*segment_, rank) {}

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
  deadline_ = call.deadline;
  compared_ = false;
  parity_ = static_cast<unsigned>(rounds_.number() & 1);
  return Error::ok();
}

Error ShmCollectives::meet() {
  if (compared_) return rounds_.next(record_, deadline_, false);
  segment_->control(rank_).records[parity_] = record_;
  if (Error error = rounds_.next(record_, deadline_, true)) return error;
  compared_ = true;
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
