#include "rpc_backend/trace/call_recorder.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/core/innermost.h"
#include "rpc_backend/trace/called_function.h"

namespace weft::rpc {

namespace {

thread_local std::shared_ptr<torch::CapturedTraceback> t_site;

std::int32_t thisThread() {
  thread_local const auto number = static_cast<std::int32_t>(gettid());
  return number;
}

CallRecord recordOf(std::uint64_t call, worker_id_t peer, MessageType type,
                    std::span<const char> payload, const Message& message) {
  CallRecord record;
  record.call = call;
  record.peer = peer;
  record.kind = kindOf(type);
  const std::string_view name = functionOf(type, payload).substr(0, record.name.size() - 1);
  std::ranges::copy(name, record.name.begin());
  record.request_bytes = bytesOf(message);
  record.thread = thisThread();
  return record;
}

}  // namespace

std::uint64_t bytesOf(const Message& message) {
  std::uint64_t bytes = message.payload().size();
  for (const at::Tensor& tensor : message.tensors())
    if (tensor.defined() && tensor.layout() == at::kStrided) bytes += tensor.nbytes();
  return bytes;
}

CallSite::CallSite() {
  if (CallRecorder::get().keepsStacks())
    t_site = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

CallSite::~CallSite() { t_site.reset(); }

CallRecorder& CallRecorder::get() {
  static auto* const recorder = new CallRecorder();
  return *recorder;
}

void CallRecorder::start(std::size_t size, bool stacks) {
  std::vector<CallRecord> made(size), served(size);
  {
    const std::lock_guard lock(mutex_);
    made_.swap(made);
    served_.swap(served);
    next_served_ = 0;
    stacks_.store(stacks && size != 0);
    size_.store(size);
  }
  // What was kept, with its tracebacks, is let go of without the lock.
}

std::int64_t CallRecorder::now() const noexcept { return on() ? c10::getTime() : 0; }

void CallRecorder::made(std::uint64_t call, worker_id_t to, MessageType type,
                        std::span<const char> payload, const Message& message) {
  CallRecord record = recordOf(call, to, type, payload, message);
  record.traceback = std::exchange(t_site, nullptr);
  record.created_ns = c10::getTime();
  const std::lock_guard lock(mutex_);
  if (!made_.empty()) std::swap(made_[call % made_.size()], record);
}

void CallRecorder::answered(std::uint64_t call, std::uint64_t bytes, bool failed) noexcept {
  if (!on()) return;
  const auto now = c10::getTime();
  const std::lock_guard lock(mutex_);
  if (made_.empty()) return;
  CallRecord& record = made_[call % made_.size()];
  if (record.call != call || record.created_ns == 0 || record.ended_ns != 0) return;
  record.ended_ns = now;
  record.answer_bytes = bytes;
  record.failed = failed;
}

CallRecorder::Entry CallRecorder::serves(std::uint64_t call, worker_id_t from,
                                         const Message& message, std::int64_t arrived) {
  if (!on()) return std::nullopt;
  const Innermost asked = innermost(message.type(), message.payload());
  if (!isUserCall(asked.type)) return std::nullopt;
  CallRecord record = recordOf(call, from, asked.type, asked.payload, message);
  record.started_ns = c10::getTime();
  record.created_ns = arrived != 0 ? arrived : record.started_ns;
  const std::lock_guard lock(mutex_);
  if (served_.empty()) return std::nullopt;
  served_[next_served_ % served_.size()] = std::move(record);
  return next_served_++;
}

void CallRecorder::served(Entry entry, bool failed) noexcept {
  if (!entry) return;
  const auto now = c10::getTime();
  const std::lock_guard lock(mutex_);
  if (served_.empty() || *entry >= next_served_ || *entry + served_.size() < next_served_) return;
  CallRecord& record = served_[*entry % served_.size()];
  record.ended_ns = now;
  record.failed = failed;
}

CallRecorder::Calls CallRecorder::calls() const {
  Calls found;
  {
    const std::lock_guard lock(mutex_);
    found = {made_, served_};
  }
  for (auto* const list : {&found.made, &found.served}) {
    std::erase_if(*list, [](const CallRecord& one) { return one.created_ns == 0; });
    std::ranges::sort(*list, {}, &CallRecord::created_ns);
  }
  return found;
}

}  // namespace weft::rpc
