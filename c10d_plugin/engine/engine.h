// Engine: runs a group's operations in order on its Collectives, and makes the Work of each. A
// synchronous operation runs on the calling thread if nothing is before it; all others run on the
// group's queue (op_queue.h).
//
// Threads: any thread may call any member. Ownership: queued operations keep it alive, so it may
// outlive the backend. Failure: submit() or Work::wait() throws.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/engine/call_text.h"
#include "c10d_plugin/engine/coalescing_batches.h"
#include "c10d_plugin/engine/group_recorder.h"
#include "c10d_plugin/engine/op_context.h"
#include "c10d_plugin/engine/op_queue.h"
#include "c10d_plugin/engine/op_recorder.h"
#include "c10d_plugin/engine/running_op.h"
#include "c10d_plugin/engine/work.h"
#include "c10d_plugin/store/key_value.h"
#include "transport/base/fork_guard.h"

namespace weft::process_group {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  using Run = std::function<void(OpContext&)>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `store`: there the ranks tell each other what they called, if that differed.
  Engine(std::unique_ptr<collectives::Collectives> collectives,
         std::shared_ptr<collectives::KeyValue> store)
      : collectives_(std::move(collectives)),
        store_(std::move(store)),
        recorder_(collectives_->rank()) {}

  // Runs or queues an operation. Null for a synchronous call, which throws its error, unless torch
  // registers its Work: then its caller waits for that. `describe` makes the OpInfo, and is called
  // only if that is needed; `run` throws what goes wrong.
  template <typename Describe, typename RunIt>
  WorkPtr submit(const OpParams& params, Describe&& describe, RunIt&& run) {
    checkProcess(params.title);
    checkThread(params.title);
    const std::uint64_t sequence = recorder_.countCall();
    const bool records = OpRecorder::get().on();
    TrackedOp recorded;
    if (records) recorded = recorder_.track(params, describe(), sequence);
    if (!params.async && !batches_.isOpen() && !needsWork() && queue_.tryEnter()) {
      const Leave leave{queue_};
      recorded.start();
      const RunningOp::Scope running(running_, params.title, params.timeout);
      OpContext context = makeContext(params);
      runHere(context, run,
              [&] { return recorder_.ownCall(recorded, params, describe(), sequence); });
      return nullptr;
    }
    OpInfo info = describe();
    if (!records) recorded = recorder_.track(params, info, sequence);
    return enqueue(params, std::move(info), std::forward<RunIt>(run), std::move(recorded));
  }

  // Throws in a forked child of the group's process, which has no part in the group.
  void checkProcess(const char* title) const;
  bool inOwnProcess() const { return process_.inOwnProcess(); }

  // The batches of threads that coalesce. What such a thread submits is asynchronous and goes into
  // its batch.
  CoalescingBatches& batches() noexcept { return batches_; }
  GroupRecorder& recorder() noexcept { return recorder_; }
  Activity activity() const;

  bool allocates() const { return collectives_->allocates(); }
  transport::OwnedBuffer allocate(std::size_t size) { return collectives_->allocate(size); }

  // Whether some operation failed in a way that ended the group.
  bool failed() const { return failed_.load(); }
  void abort(transport::Error reason) { collectives_->abort(std::move(reason)); }
  // Refuses new operations. The running ones are aborted if they have not ended after `limit`.
  void close(std::chrono::milliseconds limit);

 private:
  using OpQueue = collectives::OpQueue;

  struct Leave {
    OpQueue& queue;
    ~Leave() { queue.leave(); }
  };
  class QueuedOp;

  // Whether torch has use for a synchronous call's Work: a profiler's event belongs to it, and so
  // do the tensors of functional collectives that wait later.
  static bool needsWork();
  // Throws in a signal's handler that has interrupted an operation on this very thread: another one
  // would wait for that, and that for the handler.
  void checkThread(const char* title) const {
    if (const char* outer = running_.onThisThread()) refuseInside(outer, title);
  }
  [[noreturn]] static void refuseInside(const char* outer, const char* title);
  int rank() const { return collectives_->rank(); }
  OpContext makeContext(const OpParams& params) {
    return {*collectives_, transport::deadlineAfter(params.timeout), sequence_, params.title,
            failed_};
  }
  WorkPtr enqueue(const OpParams& params, OpInfo info, Run run, TrackedOp recorded);
  // Ctrl-C has ended the wait for a synchronous operation that is queued or runs.
  void endInterrupted(WeftWork& work);
  // Runs an operation. If the ranks called different operations, its error says from which lines;
  // only then `own` is called, for an optional OpRecord of this rank's call.
  template <typename RunIt, typename Own>
  void runOrExplain(OpContext& context, RunIt& run, Own&& own) {
    try {
      run(context);
    } catch (const c10::Error& error) {
      onFailure(context, error.what_without_backtrace());
      if (!context.differed()) throw;
      explain(error, own());
    } catch (const std::exception& error) {
      onFailure(context, error.what());
      throw;
    } catch (...) {
      onFailure(context, "an exception");
      throw;
    }
  }
  // Runs an operation on the thread that called it; any error says what was called. (For a queued
  // operation WeftWork::wait() adds that.)
  template <typename RunIt, typename Own>
  void runHere(OpContext& context, RunIt& run, Own&& own) {
    try {
      runOrExplain(context, run, own);
    } catch (c10::Error& error) {
      if (!context.differed()) error.add_context(callText(own()));
      throw;
    }
  }
  // In the handler of an exception: counts it, and ends the group if the ranks would be out of
  // step.
  void onFailure(const OpContext& context, const char* why);
  // In the handler of `error`: throws one that names the ranks' lines, too.
  [[noreturn]] void explain(const c10::Error& error, const std::optional<OpRecord>& own);

  std::unique_ptr<collectives::Collectives> collectives_;
  const std::shared_ptr<collectives::KeyValue> store_;  // used after a failure
  std::uint64_t sequence_ = 0;  // of the Collectives' operations; the running one's alone
  std::atomic<bool> failed_{false};
  RunningOp running_;
  GroupRecorder recorder_;
  CoalescingBatches batches_;
  const transport::ForkGuard process_;
  OpQueue queue_;
};

}  // namespace weft::process_group
