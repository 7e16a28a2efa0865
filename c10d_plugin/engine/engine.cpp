#include "c10d_plugin/engine/engine.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <string>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/engine/op_error.h"
#include "c10d_plugin/store/exchange_calls.h"
#include "transport/base/interruption.h"

namespace weft::process_group {

using transport::Error;
using transport::ErrorCode;

class Engine::QueuedOp final : public OpQueue::Task {
 public:
  QueuedOp(std::shared_ptr<Engine> engine, const OpParams& params,
           c10::intrusive_ptr<WeftWork> work, Run run, TrackedOp recorded)
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
      const RunningOp::Scope running(engine_->running_, params_.title, params_.timeout);
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
  // Sets `call` if the error does not say what was called.
  void runWith(OpContext context, std::optional<OpRecord>& call) {
    try {
      engine_->runOrExplain(context, run_, [this] {
        auto own = recorded_.record();
        if (own) own->site = site_;
        return own;
      });
    } catch (const c10::Error&) {
      if (!context.differed()) call = recorded_.record();
      throw;
    }
  }

  std::shared_ptr<Engine> engine_;
  OpParams params_;
  c10::intrusive_ptr<WeftWork> work_;
  Run run_;
  TrackedOp recorded_;
  const std::string site_ = OpRecorder::get().siteForErrors();  // made by the thread that calls
  bool has_callbacks_ = false;
};

bool Engine::needsWork() {
  return c10d::allow_inflight_collective_as_graph_input() ||
         at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

Activity Engine::activity() const {
  Activity activity;
  activity.calls = recorder_.calls();
  activity.busy = running_.busy();
  // A forked child does not have the memory that the ranks share, nor a share in locks.
  if (!inOwnProcess()) return activity;
  if (running_.fillIn(activity)) activity.awaited = collectives_->awaited();
  activity.waited = collectives_->waited();
  return activity;
}

void Engine::onFailure(const OpContext& context, const char* why) {
  OpRecorder::get().countFailure();
  if (!context.leftBehind() || collectives_->size() == 1) return;
  failed_.store(true);
  abort(Error(ErrorCode::kShutdown,
              std::string(context.title()) + " failed on rank " + std::to_string(rank()) +
                  " before it was done with the other ranks, which ends the group, because the "
                  "ranks would be out of step: " +
                  why));
}

void Engine::explain(const c10::Error& error, const std::optional<OpRecord>& own) {
  const int size = collectives_->size();
  if (!own || size == 1) throw;
  const std::string all = collectives::exchangeCalls(
      store_, rank(), size, {own->collective_sequence, argumentsText(*own)},
      !collectives_->outlivesDifferentCalls());
  transport::raiseInterrupt();  // if Ctrl-C came while it waited for the others
  TORCH_CHECK(false, error.what_without_backtrace(), "; in ",
              collectives::groupText(own->group_name), ", ", all);
}

Engine::WorkPtr Engine::enqueue(const OpParams& params, OpInfo info, Run run, TrackedOp recorded) {
  auto work = c10::make_intrusive<WeftWork>(rank(), std::move(info));
  const bool taken = queue_.push(std::make_unique<QueuedOp>(shared_from_this(), params, work,
                                                            std::move(run), std::move(recorded)));
  if (!taken)
    throwAsTorch(params.title, Error(ErrorCode::kShutdown, "the process group was shut down"));
  if (batches_.add(work) || params.async || c10d::allow_inflight_collective_as_graph_input())
    return work;
  try {
    work->wait();
  } catch (...) {
    if (!work->isCompleted()) endInterrupted(*work);
    throw;
  }
  return nullptr;
}

// Like an operation on the calling thread, which Ctrl-C ends for all ranks: the caller's tensors
// are its own again.
void Engine::endInterrupted(WeftWork& work) {
  abort(Error(ErrorCode::kInterrupted,
              collectives::interruptedText(rank(), std::string("it ran ") + work.title())));
  work.waitUntilCompleted();
}

void Engine::checkProcess(const char* title) const {
  TORCH_CHECK(inOwnProcess(), title,
              ": this process was forked after the process group was made, and has no part in it; "
              "make the group in the child, or use the group in the parent");
}

void Engine::refuseInside(const char* outer, const char* title) {
  TORCH_CHECK(
      false, title, ": a signal's handler called it while its own thread is inside ", outer,
      " of the same group, which goes on only after the handler; let the handler set a flag, "
      "and call it after ",
      outer);
}

void Engine::close(std::chrono::milliseconds limit) {
  if (!inOwnProcess()) return;
  // In a signal's handler: what its own thread runs does not end before the handler.
  if (running_.onThisThread() != nullptr) limit = std::chrono::milliseconds(0);
  const auto end = transport::deadlineAfter(limit);
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
  collectives_->leave();
}

}  // namespace weft::process_group
