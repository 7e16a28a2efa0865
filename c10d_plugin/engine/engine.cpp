#include "c10d_plugin/engine/engine.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "c10d_plugin/engine/coalesced_work.h"
#include "c10d_plugin/engine/mismatch.h"
#include "transport/base/interruption.h"

namespace weft::process_group {

using transport::Error;
using transport::ErrorCode;

void raise(const char* title, const Error& error) {
  transport::raiseInterrupt();  // whatever the interrupted operation made of it
  constexpr std::string_view kSaid = "Timed out: ";
  std::string_view why = error.text();
  std::string text = std::string(title) + ": ";
  if (error.code() == ErrorCode::kTimeout) {
    // Programs search for "Timed out" with a space on both sides, for every backend.
    if (why.starts_with(kSaid)) why.remove_prefix(kSaid.size());
    if (why.find("Timed out") == std::string_view::npos) text += "Timed out after waiting: ";
  }
  text += why;
  if (error.code() == ErrorCode::kInvalidArgument) TORCH_CHECK(false, text);
  C10_THROW_ERROR(DistBackendError, text);
}

class Engine::Queued final : public OpQueue::Task {
 public:
  Queued(std::shared_ptr<Engine> engine, const OpParams& params, c10::intrusive_ptr<WeftWork> work,
         Run run, RecordedOp recorded)
      : engine_(std::move(engine)),
        params_(params),
        work_(std::move(work)),
        run_(std::move(run)),
        recorded_(std::move(recorded)) {}

  void run() noexcept override {
    std::exception_ptr error;
    std::optional<OpRecord> call;
    recorded_.start();
    try {
      const RunningScope running(*engine_, params_);
      runWith(engine_->makeContext(params_), call);
    } catch (...) {
      error = std::current_exception();
    }
    recorded_.end(error != nullptr);
    has_callbacks_ = work_->settle(std::move(error), std::move(call));
  }
  bool finishMayBlock() noexcept override { return has_callbacks_; }
  void finish() noexcept override {
    run_ = nullptr;  // it may hold the last references to tensors, whose release needs the GIL
    work_->complete();
  }

 private:
  // Sets `call` where the error does not say yet what was called.
  void runWith(OpContext context, std::optional<OpRecord>& call) {
    try {
      engine_->runOrExplain(context, run_, [this] { return recorded_.record(); });
    } catch (const c10::Error&) {
      if (!context.differed()) call = recorded_.record();
      throw;
    }
  }

  std::shared_ptr<Engine> engine_;
  OpParams params_;
  c10::intrusive_ptr<WeftWork> work_;
  Run run_;
  RecordedOp recorded_;
  bool has_callbacks_ = false;
};

bool Engine::profiled() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

Engine::RunningScope::RunningScope(Engine& engine, const OpParams& params) : engine_(engine) {
  engine_.running_since_ns_.store(start_.time_since_epoch().count(), std::memory_order_relaxed);
  engine_.running_timeout_ms_.store(params.timeout.count(), std::memory_order_relaxed);
  engine_.running_.store(params.title, std::memory_order_release);
}

Engine::RunningScope::~RunningScope() {
  engine_.running_.store(nullptr, std::memory_order_relaxed);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start_;
  engine_.busy_ns_.fetch_add(took.count(), std::memory_order_relaxed);
}

Engine::Running Engine::running() const {
  const char* const title = running_.load(std::memory_order_acquire);
  if (title == nullptr) return {};
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return {title, now - std::chrono::nanoseconds(running_since_ns_.load(std::memory_order_relaxed)),
          std::chrono::milliseconds(running_timeout_ms_.load(std::memory_order_relaxed)),
          collectives_->awaited()};
}

std::uint64_t Engine::nextId() {
  static std::atomic<std::uint64_t> next{0};
  return next.fetch_add(1);
}

OpRecord Engine::makeRecord(const OpParams& params, const OpInfo& info,
                            std::uint64_t sequence) const {
  OpRecord made;
  made.group_id = id_;
  if (params.group != nullptr) {
    made.group_name = params.group->getGroupUid();
    made.group_description = params.group->getGroupDesc();
  }
  made.collective_sequence = sequence;
  made.message_sequence = messages_.load(std::memory_order_relaxed);
  made.title = params.title;
  made.rank = rank();
  made.is_message = info.type == c10d::OpType::SEND || info.type == c10d::OpType::RECV ||
                    info.type == c10d::OpType::RECVANYSOURCE;
  if (info.inputs) made.inputs = shapesOf(*info.inputs);
  for (const auto& list : info.outputs) {
    for (auto& shape : shapesOf(list))
      made.outputs.push_back(std::move(shape));
  }
  made.timeout = params.timeout;
  return made;
}

RecordedOp Engine::record(const OpParams& params, const OpInfo& info,
                          std::uint64_t sequence) const {
  return RecordedOp(OpRecorder::get().add(makeRecord(params, info, sequence)));
}

OpRecord Engine::ownCall(const RecordedOp& recorded, const OpParams& params, const OpInfo& info,
                         std::uint64_t sequence) const {
  if (auto made = recorded.record()) return *std::move(made);
  OpRecord made = makeRecord(params, info, sequence);
  made.traceback = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false,
                                                    /*cpp=*/false);
  return made;
}

RecordedOp Engine::unrecorded(OpRecord made) {
  made.traceback = OpRecorder::get().stack();
  return RecordedOp(std::move(made));
}

void Engine::explain(const c10::Error& error, const std::optional<OpRecord>& own) {
  const int size = collectives_->size();
  if (!own || size == 1) throw;
  const std::string all =
      exchangeCalls(store_, rank(), size, own->collective_sequence, argumentsText(*own));
  transport::raiseInterrupt();  // Ctrl-C while it waited for the others
  TORCH_CHECK(false, error.what_without_backtrace(), "; group '", own->group_name, "', ", all);
}

RecordedOp Engine::recordMessage(const OpParams& params, c10d::OpType type,
                                 const at::Tensor& tensor, int peer, int tag) {
  messages_.fetch_add(1, std::memory_order_relaxed);
  const bool sends = type == c10d::OpType::SEND;
  OpRecord made = makeRecord(params,
                             OpInfo{type,
                                    params.title,
                                    sends ? std::vector{tensor} : std::vector<at::Tensor>(),
                                    {sends ? std::vector<at::Tensor>() : std::vector{tensor}}},
                             calls());
  made.peer = peer;
  made.tag = tag;
  if (!OpRecorder::get().on()) return RecordedOp(std::move(made));
  RecordedOp recorded(OpRecorder::get().add(std::move(made)));
  recorded.start();
  return recorded;
}

Engine::WorkPtr Engine::enqueue(const OpParams& params, OpInfo info, Run run, RecordedOp recorded) {
  auto work = c10::make_intrusive<WeftWork>(rank(), std::move(info));
  const bool taken = queue_.push(std::make_unique<Queued>(shared_from_this(), params, work,
                                                          std::move(run), std::move(recorded)));
  if (!taken) raise(params.title, Error(ErrorCode::kShutdown, "the process group was shut down"));
  if (coalescing()) {
    add(work);
    return work;
  }
  if (params.async) return work;
  work->wait();
  return nullptr;
}

void Engine::checkProcess(const char* title) const {
  TORCH_CHECK(inOwnProcess(), title,
              ": this process was forked after the process group was made, and has no part in it; "
              "make the group in the child, or use the group in the parent");
}

void Engine::startCoalescing() {
  checkProcess("weft:coalescing");
  const std::lock_guard lock(batches_mutex_);
  batches_[std::this_thread::get_id()].clear();
  batches_open_.store(batches_.size(), std::memory_order_release);
}

bool Engine::coalescing() const {
  if (batches_open_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(batches_mutex_);
  return batches_.contains(std::this_thread::get_id());
}

void Engine::add(const WorkPtr& work) {
  if (batches_open_.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard lock(batches_mutex_);
  const auto own = batches_.find(std::this_thread::get_id());
  if (own != batches_.end()) own->second.push_back(work);
}

Engine::WorkPtr Engine::endCoalescing() {
  std::vector<WorkPtr> works;
  {
    const std::lock_guard lock(batches_mutex_);
    auto own = batches_.extract(std::this_thread::get_id());
    TORCH_CHECK(!own.empty(), "weft: endCoalescing() without startCoalescing() on this thread");
    works = std::move(own.mapped());
    batches_open_.store(batches_.size(), std::memory_order_release);
  }
  // Unwrapped: another backend's Work knows its streams.
  if (works.size() == 1) return std::move(works.front());
  return c10::make_intrusive<CoalescedWork>(std::move(works));
}

void Engine::close(std::chrono::milliseconds limit) {
  if (!inOwnProcess()) return;
  const auto end = collectives::deadlineAfter(limit);
  if (!queue_.drain(limit)) {
    abort(Error(ErrorCode::kShutdown, "the process group was shut down on rank " +
                                          std::to_string(rank()) +
                                          " while operations were under way"));
  }
  queue_.close();
  const auto left = std::max(std::chrono::milliseconds(1000),
                             std::chrono::duration_cast<std::chrono::milliseconds>(
                                 end - std::chrono::steady_clock::now()));
  queue_.waitForThreads(left);
}

}  // namespace weft::process_group
