#include "c10d_plugin/engine.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace weft::process_group {

using transport::Error;
using transport::ErrorCode;

void raise(const char* title, const Error& error) {
  constexpr std::string_view kSaid = "Timed out: ";
  std::string_view why = error.text();
  std::string text = std::string(title) + ": ";
  if (error.code() == ErrorCode::kTimeout) {
    // Programs look for "Timed out" with a space on both sides, whatever the backend.
    if (why.starts_with(kSaid)) why.remove_prefix(kSaid.size());
    if (why.find("Timed out") == std::string_view::npos) text += "Timed out after waiting: ";
  }
  text += why;
  if (error.code() == ErrorCode::kInvalidArgument) TORCH_CHECK(false, text);
  C10_THROW_ERROR(DistBackendError, text);
}

class Engine::Queued final : public OpQueue::Task {
 public:
  Queued(std::shared_ptr<Engine> engine, const Brief& brief, c10::intrusive_ptr<WeftWork> work,
         Run run)
      : engine_(std::move(engine)), brief_(brief), work_(std::move(work)), run_(std::move(run)) {}

  void run() noexcept override {
    std::exception_ptr error;
    try {
      Turn turn = engine_->makeTurn(brief_);
      run_(turn);
    } catch (...) {
      error = std::current_exception();
    }
    has_callbacks_ = work_->settle(std::move(error));
  }
  bool finishMayBlock() noexcept override { return has_callbacks_; }
  void finish() noexcept override {
    run_ = nullptr;  // its tensors may be the last references, and need the GIL to go
    work_->complete();
  }

 private:
  std::shared_ptr<Engine> engine_;
  Brief brief_;
  c10::intrusive_ptr<WeftWork> work_;
  Run run_;
  bool has_callbacks_ = false;
};

bool Engine::profiled() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

Engine::WorkPtr Engine::enqueue(const Brief& brief, OpInfo info, Run run) {
  auto work = c10::make_intrusive<WeftWork>(rank(), std::move(info));
  const bool taken =
      queue_.push(std::make_unique<Queued>(shared_from_this(), brief, work, std::move(run)));
  if (!taken) raise(brief.title, Error(ErrorCode::kShutdown, "the process group was shut down"));
  if (coalescing()) {
    add(work);
    return work;
  }
  if (brief.async) return work;
  work->wait();
  return nullptr;
}

namespace {

// Several operations as one.
class CoalescedWork final : public c10d::Work {
 public:
  explicit CoalescedWork(std::vector<Engine::WorkPtr> parts)
      : c10d::Work(-1, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

  bool isCompleted() override {
    for (const auto& part : parts_) {
      if (!part->isCompleted()) return false;
    }
    return true;
  }
  bool isSuccess() const override { return exception() == nullptr; }
  std::exception_ptr exception() const override {
    for (const auto& part : parts_) {
      if (auto error = part->exception()) return error;
    }
    return nullptr;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& part : parts_)
      part->wait(timeout);
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(c10::ListType::ofTensors()));
    for (const auto& part : parts_)
      futures.push_back(part->getFuture());
    return c10::collectAll(futures);
  }

 private:
  std::vector<Engine::WorkPtr> parts_;
};

}  // namespace

void Engine::startCoalescing() {
  const std::lock_guard lock(coalesced_mutex_);
  TORCH_CHECK(!coalescing_.load(), "weft: startCoalescing() twice without endCoalescing()");
  coalesced_.clear();
  coalescing_.store(true, std::memory_order_release);
}

void Engine::add(const WorkPtr& work) {
  if (!coalescing()) return;
  const std::lock_guard lock(coalesced_mutex_);
  coalesced_.push_back(work);
}

Engine::WorkPtr Engine::endCoalescing() {
  const std::lock_guard lock(coalesced_mutex_);
  TORCH_CHECK(coalescing_.load(), "weft: endCoalescing() without startCoalescing()");
  coalescing_.store(false, std::memory_order_release);
  if (coalesced_.size() == 1) {
    // As it is: another backend's Work knows its streams.
    WorkPtr one = std::move(coalesced_.front());
    coalesced_.clear();
    return one;
  }
  return c10::make_intrusive<CoalescedWork>(std::exchange(coalesced_, {}));
}

bool Engine::close(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  const bool drained = queue_.drain(limit);
  if (!drained) {
    abort(Error(ErrorCode::kShutdown, "the process group was shut down on rank " +
                                          std::to_string(rank()) +
                                          " while operations were under way"));
  }
  queue_.close();
  const auto left = std::max(std::chrono::milliseconds(1000),
                             std::chrono::duration_cast<std::chrono::milliseconds>(
                                 end - std::chrono::steady_clock::now()));
  return queue_.waitForThreads(left) && drained;
}

}  // namespace weft::process_group
