// Engine: runs a group's operations in order on its Collectives, a synchronous one on the calling
// thread if nothing runs before it, else on the group's queue (op_queue.h). Makes the Work.
//
// Threads: any thread may call any member. Outlives the backend while operations run.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/engine/call_text.h"
#include "c10d_plugin/engine/op_queue.h"
#include "c10d_plugin/engine/op_recorder.h"
#include "c10d_plugin/engine/work.h"
#include "c10d_plugin/store/key_value.h"
#include "transport/base/fork_guard.h"

namespace weft::process_group {

// Throws what a failed operation throws: c10::DistBackendError, "weft all_reduce: <why>"; where
// Ctrl-C ended it on this very thread, what its handler raised.
[[noreturn]] void raise(const char* title, const transport::Error& error);

// What a running operation uses: the Collectives, and the Call for each of their operations.
class OpContext {
 public:
  OpContext(collectives::Collectives& collectives, collectives::Deadline deadline,
            std::uint64_t& sequence, const char* title, std::atomic<bool>& failed)
      : collectives_(collectives),
        deadline_(deadline),
        sequence_(sequence),
        title_(title),
        failed_(failed) {}

  collectives::Collectives* operator->() const { return &collectives_; }
  // A new one for each operation of the Collectives.
  collectives::Call call(collectives::Element element = collectives::Element::kBytes,
                         collectives::Reduction reduction = collectives::Reduction::kSum) const {
    return {deadline_, sequence_++, element, reduction};
  }
  void check(const transport::Error& error) {
    if (!error) return;
    differed_ = error.code() == transport::ErrorCode::kInvalidArgument;
    if (!differed_) failed_.store(true);
    raise(title_, error);
  }
  // What check() threw says that the ranks called different operations.
  bool differed() const noexcept { return differed_; }

 private:
  collectives::Collectives& collectives_;
  collectives::Deadline deadline_;
  std::uint64_t& sequence_;
  const char* title_;
  std::atomic<bool>& failed_;
  bool differed_ = false;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  using Run = std::function<void(OpContext&)>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  struct OpParams {
    const char* title = nullptr;
    std::chrono::milliseconds timeout{};  // from when the operation begins to run
    bool async = true;
    const c10d::Backend* group = nullptr;  // alive during submit(); for the record
  };

  // In `store` the ranks tell each other what they called, when that differed.
  Engine(std::unique_ptr<collectives::Collectives> collectives,
         std::shared_ptr<collectives::KeyValue> store)
      : collectives_(std::move(collectives)), store_(std::move(store)) {}

  // What a message is, for the record where there is one, and for its error. `peer`: the other
  // rank; -1: any.
  RecordedOp recordMessage(const OpParams& params, c10d::OpType type, const at::Tensor& tensor,
                           int peer, int tag);

  // Null for a synchronous call, which throws its error. `describe` makes the OpInfo, only where a
  // Work is needed; `run` throws what goes wrong.
  template <typename Describe, typename RunIt>
  WorkPtr submit(const OpParams& params, Describe&& describe, RunIt&& run) {
    checkProcess(params.title);
    const std::uint64_t sequence = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    const bool records = OpRecorder::get().on();
    RecordedOp recorded;
    if (records) recorded = record(params, describe(), sequence);
    if (!params.async && !coalescing() && !profiled() && queue_.tryEnter()) {
      const Leave leave{queue_};
      recorded.start();
      const RunningScope running(*this, params);
      OpContext context = makeContext(params);
      runHere(context, run, [&] { return ownCall(recorded, params, describe(), sequence); });
      return nullptr;
    }
    OpInfo info = describe();
    if (!records) recorded = unrecorded(makeRecord(params, info, sequence));
    return enqueue(params, std::move(info), std::forward<RunIt>(run), std::move(recorded));
  }

  // Throws where this process is a forked child of the group's: it has no part in the group.
  void checkProcess(const char* title) const;
  bool inOwnProcess() const { return process_.inOwnProcess(); }

  // All operations that the calling thread submits between these are asynchronous;
  // endCoalescing() returns the Work of all of them. Other threads' operations take no part. A
  // batch that an exception left open is dropped by the next one.
  void startCoalescing();
  WorkPtr endCoalescing();
  // Whether the calling thread is between the two.
  bool coalescing() const;
  // Adds a message's Work to the batch.
  void add(const WorkPtr& work);

  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // The operation that runs now, if any. It may be the next one by the time this returns.
  struct Running {
    const char* title = nullptr;  // null: none
    std::chrono::nanoseconds since{};
    std::chrono::milliseconds timeout{};
    std::vector<int> awaited;  // the ranks that it waits for, where that is known
  };
  Running running() const;
  // WaitTimes::seconds().
  std::vector<double> waited() const { return collectives_->waited(); }
  // How long operations ran, all in all.
  std::chrono::nanoseconds busy() const {
    return std::chrono::nanoseconds(busy_ns_.load(std::memory_order_relaxed));
  }
  int rank() const { return collectives_->rank(); }
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
  // An operation runs for a scope; one at a time.
  class RunningScope {
   public:
    RunningScope(Engine& engine, const OpParams& params);
    ~RunningScope();
    RunningScope(const RunningScope&) = delete;
    RunningScope& operator=(const RunningScope&) = delete;

   private:
    Engine& engine_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };
  class Queued;

  static bool profiled();
  static std::uint64_t nextId();
  OpContext makeContext(const OpParams& params) {
    return {*collectives_, collectives::deadlineAfter(params.timeout), sequence_, params.title,
            failed_};
  }
  WorkPtr enqueue(const OpParams& params, OpInfo info, Run run, RecordedOp recorded);
  RecordedOp record(const OpParams& params, const OpInfo& info, std::uint64_t sequence) const;
  OpRecord makeRecord(const OpParams& params, const OpInfo& info, std::uint64_t sequence) const;
  static RecordedOp unrecorded(OpRecord made);
  // What the calling thread has called.
  OpRecord ownCall(const RecordedOp& recorded, const OpParams& params, const OpInfo& info,
                   std::uint64_t sequence) const;
  // Where the ranks called different operations, the error says from which lines. `own` makes an
  // optional OpRecord, then only.
  template <typename RunIt, typename Own>
  void runOrExplain(OpContext& context, RunIt& run, Own&& own) {
    try {
      run(context);
    } catch (const c10::Error& error) {
      OpRecorder::get().countFailure();
      if (!context.differed()) throw;
      explain(error, own());
    } catch (...) {
      OpRecorder::get().countFailure();
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
  // In the handler of `error`; throws one that has the ranks' lines, too.
  [[noreturn]] void explain(const c10::Error& error, const std::optional<OpRecord>& own);

  std::unique_ptr<collectives::Collectives> collectives_;
  const std::shared_ptr<collectives::KeyValue> store_;  // asked when one has failed
  std::uint64_t sequence_ = 0;  // of the Collectives' operations; used by the running one
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> messages_{0};
  std::atomic<bool> failed_{false};
  std::atomic<const char*> running_{nullptr};
  std::atomic<std::int64_t> running_since_ns_{0}, running_timeout_ms_{0};
  std::atomic<std::int64_t> busy_ns_{0};
  const std::uint64_t id_ = nextId();  // of the record's entries
  const collectives::ForkGuard process_;
  std::atomic<std::size_t> batches_open_{0};  // read without the lock
  mutable std::mutex batches_mutex_;
  std::unordered_map<std::thread::id, std::vector<WorkPtr>> batches_;
  OpQueue queue_;
};

}  // namespace weft::process_group
