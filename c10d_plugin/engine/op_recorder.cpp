#include "c10d_plugin/engine/op_recorder.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/thread_name.h>
#include <pthread.h>

#include <algorithm>
#include <exception>

namespace weft::process_group {

namespace {

GroupRecord& groupOf(std::vector<GroupRecord>& groups, const OpRecord& record) {
  const auto found =
      std::ranges::find(groups, record.group_id, [](const GroupRecord& group) { return group.id; });
  if (found != groups.end()) return *found;
  return groups.emplace_back(GroupRecord{
      .id = record.group_id, .name = record.group_name, .description = record.group_description});
}

}  // namespace

OpRecorder& OpRecorder::get() {
  static auto* const recorder = new OpRecorder();
  return *recorder;
}

void OpRecorder::start(std::size_t size, bool stacks, bool cpp_stacks) {
  const std::lock_guard lock(mutex_);
  ring_.clear();
  ring_.reserve(size);
  first_ = next_;  // operations that run have the ids of before
  stacks_.store(stacks);
  cpp_stacks_.store(cpp_stacks);
  size_.store(size);
}

std::shared_ptr<torch::CapturedTraceback> OpRecorder::stack() const {
  if (!stacks_.load(std::memory_order_relaxed)) return nullptr;
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true,
                                          cpp_stacks_.load(std::memory_order_relaxed));
}

std::string OpRecorder::site() const {
  return find_site_ == nullptr ? std::string() : find_site_();
}

std::uint64_t OpRecorder::add(OpRecord record) {
  record.traceback = stack();  // takes the GIL: before the lock
  record.thread_id = static_cast<std::uint64_t>(pthread_self());
  record.thread_name = c10::getThreadName();
  record.created_ns = c10::getTime();
  OpRecord dropped;  // its traceback is let go of without the lock
  const std::lock_guard lock(mutex_);
  const std::size_t size = size_.load(std::memory_order_relaxed);
  record.id = next_++;
  const std::uint64_t id = record.id;
  if (size == 0) return id;  // it was ended meanwhile
  if (!record.is_message) groupOf(groups_, record).last_enqueued = record.collective_sequence;
  if (ring_.size() < size) {
    ring_.push_back(std::move(record));
  } else {
    dropped = std::exchange(ring_[(id - first_) % size], std::move(record));
  }
  return id;
}

// With the lock. Null: newer operations have taken its place, or it is of before start().
OpRecord* OpRecorder::find(std::uint64_t id) noexcept {
  if (id < first_ || ring_.empty()) return nullptr;
  OpRecord& entry = ring_[(id - first_) % size_.load(std::memory_order_relaxed)];
  return entry.id == id ? &entry : nullptr;
}

void OpRecorder::started(std::uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  OpRecord* const entry = find(id);
  if (entry == nullptr) return;
  entry->started_ns = c10::getTime();
  if (!entry->is_message) groupOf(groups_, *entry).last_started = entry->collective_sequence;
}

void OpRecorder::ended(std::uint64_t id, bool failed) noexcept {
  const std::lock_guard lock(mutex_);
  OpRecord* const entry = find(id);
  if (entry == nullptr) return;
  entry->ended_ns = c10::getTime();
  entry->failed = failed;
  if (!failed && !entry->is_message)
    groupOf(groups_, *entry).last_completed = entry->collective_sequence;
}

std::optional<OpRecord> OpRecorder::entry(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const OpRecord* const found = find(id);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

std::vector<OpRecord> OpRecorder::entries() const {
  std::vector<OpRecord> all;
  {
    const std::lock_guard lock(mutex_);
    all = ring_;
  }
  std::ranges::sort(all, {}, &OpRecord::id);
  return all;
}

std::vector<GroupRecord> OpRecorder::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

TrackedOp::~TrackedOp() {
  if (id_) end(std::uncaught_exceptions() > exceptions_);
}

void TrackedOp::start() noexcept {
  if (id_) OpRecorder::get().started(*id_);
}

void TrackedOp::end(bool failed) noexcept {
  if (const auto id = std::exchange(id_, std::nullopt)) OpRecorder::get().ended(*id, failed);
}

std::optional<OpRecord> TrackedOp::record() const {
  if (id_) return OpRecorder::get().entry(*id_);
  return own_ ? std::optional(*own_) : std::nullopt;
}

std::vector<TensorShape> shapesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorShape> shapes;
  shapes.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) shapes.push_back({tensor.sizes().vec(), tensor.scalar_type()});
  }
  return shapes;
}

}  // namespace weft::process_group
