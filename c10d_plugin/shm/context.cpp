#include "c10d_plugin/shm/context.h"

#include <utility>

namespace weft::collectives::shm {

Context::Context(std::shared_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)),
      heap_(std::make_shared<Heap>(segment_, rank)),
      rank_(rank),
      size_(segment_->layout().ranks),
      steps_(*segment_, rank),
      direct_(*segment_, *heap_, rank) {}

Error Context::begin(const Call& call, Operation operation, std::size_t bytes, int root) {
  if (segment_->failed()) return segment_->failure();
  record_.op = OpFingerprint::of(operation, call, bytes, root);
  record_.sizes = {};
  deadline_ = call.deadline;
  compared_ = false;
  parity_ = static_cast<unsigned>(steps_.number() & 1);
  direct_.begin(parity_);
  if (hasRoot(operation) && (root < 0 || root >= size_)) {
    return refuse("the group of " + std::to_string(size_) + " ranks has no rank " +
                  std::to_string(root) + " to be the root");
  }
  if (!reduces(operation)) return Error::ok();
  const std::string why = whyNotReducible(record_.op, bytes);
  return why.empty() ? Error::ok() : refuse(why);
}

Error Context::meet() {
  const bool first = !compared_;
  if (first) {
    record_.direct = direct_.offering();
    segment_->control(rank_).records[parity_] = record_;
  }
  if (Error error = steps_.next(record_.op, deadline_, first)) {
    direct_.withdraw();
    return error;
  }
  if (!first) return Error::ok();
  compared_ = true;
  direct_.learnOffers();
  return compareCalls();
}

Error Context::refuse(const std::string& why) {
  const Error reason(ErrorCode::kInvalidArgument, record_.op.describe() + ": " + why);
  record_.op.operation = Operation::kRefused;
  const Error error = meet();
  return error.code() == ErrorCode::kInvalidArgument ? reason : error;
}

Error Context::obtainBuffers() {
  if (have_buffers_) return Error::ok();
  if (Error error = segment_->obtainBuffers(rank_)) {
    segment_->fail(error);
    return error;
  }
  have_buffers_ = true;
  return Error::ok();
}

}  // namespace weft::collectives::shm
