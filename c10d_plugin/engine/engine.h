// Engine: runs a group's operations in order on its Collectives, a synchronous one on the calling
// thread if nothing runs before it, else on the group's queue (op_queue.h). Makes the Work.
//
// Threads: any thread may call any member. Outlives the backend while operations run.
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

  // In `store` the ranks tell each other what they called, when that differed.
  Engine(std::unique_ptr<collectives::Collectives> collectives,
         std::shared_ptr<collectives::KeyValue> store)
      : collectives_(std::move(collectives)),
        store_(std::move(store)),
        recorder_(collectives_->rank()) {}

  // Null for a synchronous call, which throws its error. `describe` makes the OpInfo, only where a
  // Work is needed; `run` throws what goes wrong.
  template <typename Describe, typename RunIt>
  WorkPtr submit(const OpParams& params, Describe&& describe, RunIt&& run) {
    checkProcess(params.title);
    const std::uint64_t sequence = recorder_.countCall();
    const bool records = OpRecorder::get().on();
    RecordedOp recorded;
    if (records) recorded = recorder_.record(params, describe(), sequence);
    if (!params.async && !batches_.isOpen() && !profiled() && queue_.tryEnter()) {
      const Leave leave{queue_};
      recorded.start();
      const RunningOp::Scope running(running_, params.title, params.timeout);
      OpContext context = makeContext(params);
      runHere(context, run,
              [&] { return recorder_.ownCall(recorded, params, describe(), sequence); });
      return nullptr;
    }
    OpInfo info = describe();
    if (!records) recorded = recorder_.unrecorded(params, info, sequence);
    return enqueue(params, std::move(info), std::forward<RunIt>(run), std::move(recorded));
  }

  // Throws where this process is a forked child of the group's: it has no part in the group.
  void checkProcess(const char* title) const;
  bool inOwnProcess() const { return process_.inOwnProcess(); }

  // Of the threads that coalesce. What they submit meanwhile is asynchronous, and in the batch.
  CoalescingBatches& batches() noexcept { return batches_; }
  GroupRecorder& recorder() noexcept { return recorder_; }
  Activity activity() const;

  bool allocates() const { return collectives_->allocates(); }
  transport::OwnedBuffer allocate(std::size_t size) { return collectives_->allocate(size); }

  // Whether some operation failed in a way that ended the group.
  bool failed() const { return failed_.load(); }
  void abort(transport::Error reason) { collectives_->abort(std::move(reason)); }
  // Refuses new operations; the running ones have so long to end, then they are aborted.
  void close(std::chrono::milliseconds limit);

 private:
  using OpQueue = collectives::OpQueue;

  struct Leave {
    OpQueue& queue;
    ~Leave() { queue.leave(); }
  };
  class Queued;

  static bool profiled();
  int rank() const { return collectives_->rank(); }
  OpContext makeContext(const OpParams& params) {
    return {*collectives_, collectives::deadlineAfter(params.timeout), sequence_, params.title,
            failed_};
  }
  WorkPtr enqueue(const OpParams& params, OpInfo info, Run run, RecordedOp recorded);
  // Where the ranks called different operations, the error says from which lines. `own` makes an
  // optional OpRecord, then only.
  template <typename RunIt, typename Own>
  void runOrExplain(OpContext& context, RunIt& run, Own&& own) {
    try {
      run(context);
    } catch (const c10::Error& error) {
      OpRecorder::get().countFailure();
      endIfLeftBehind(context, error.what_without_backtrace());
      if (!context.differed()) throw;
      explain(error, own());
    } catch (const std::exception& error) {
      OpRecorder::get().countFailure();
      endIfLeftBehind(context, error.what());
      throw;
    } catch (...) {
      OpRecorder::get().countFailure();
      endIfLeftBehind(context, "an exception");
      throw;
    }
  }
  // On the thread that called: any error says what it called. The error of an operation on the
  // queue says it where it is waited for (WeftWork::wait).
  template <typename RunIt, typename Own>
  void runHere(OpContext& context, RunIt& run, Own&& own) {
    try {
      runOrExplain(context, run, own);
    } catch (c10::Error& error) {
      if (!context.differed()) error.add_context(callText(own()));
      throw;
    }
  }
  // In the handler of an exception: ends the group where the ranks would be out of step.
  void endIfLeftBehind(const OpContext& context, const char* why);
  // In the handler of `error`; throws one that has the ranks' lines, too.
  [[noreturn]] void explain(const c10::Error& error, const std::optional<OpRecord>& own);

  std::unique_ptr<collectives::Collectives> collectives_;
  const std::shared_ptr<collectives::KeyValue> store_;  // asked when one has failed
  std::uint64_t sequence_ = 0;  // of the Collectives' operations; used by the running one
  std::atomic<bool> failed_{false};
  RunningOp running_;
  GroupRecorder recorder_;
  CoalescingBatches batches_;
  const collectives::ForkGuard process_;
  OpQueue queue_;
};

}  // namespace weft::process_group
