// OpRecorder: the last operations of this process's groups, for torch's flight recorder.
//
// torch keeps such a record for its own backends, and does not let others write into it before it
// has FlightRecorderHook; Weft's Python package adds these entries to torch's dumps where the hook
// is missing (weft/_torch/patches/flight_recorder.py). Off until start(); then each operation costs
// a short lock and the walk over its Python stack. It counts failures whether or not it is on.
//
// Threads: any thread may call any member. One per process, never destroyed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/base/api.h"

namespace weft::process_group {

struct TensorShape {
  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

// One operation. Times are nanoseconds since 1970; 0: not yet.
struct OpRecord {
  std::uint64_t id = 0;
  std::uint64_t group_id = 0;  // of this process
  std::string group_name, group_description;
  std::uint64_t collective_sequence = 0;  // as it was for the group's last collective
  std::uint64_t message_sequence = 0;     // likewise, for its last message
  const char* title = nullptr;
  bool is_message = false;
  int rank = -1;  // this process's in the group
  int peer = -1;  // of a message, in the group; -1: none, or any rank
  int tag = 0;    // of a message
  std::vector<TensorShape> inputs, outputs;
  std::chrono::milliseconds timeout{};
  std::int64_t created_ns = 0, started_ns = 0, ended_ns = 0;
  bool failed = false;
  std::uint64_t thread_id = 0;
  std::string thread_name;
  std::shared_ptr<torch::CapturedTraceback> traceback;
  std::string site;  // OpRecorder::site(), for an error only
};

// The operations of one group, in numbers.
struct GroupRecord {
  std::uint64_t id = 0;
  std::string name, description;
  std::uint64_t last_enqueued = 0, last_started = 0, last_completed = 0;
};

class WEFT_API OpRecorder {
 public:
  static OpRecorder& get();

  // Keeps the last `size` operations from now on; 0 ends it. `stacks`: of Python, also those that
  // only errors show; `cpp_stacks`: of C++, too.
  void start(std::size_t size, bool stacks, bool cpp_stacks);
  bool on() const noexcept { return size_.load(std::memory_order_relaxed) != 0; }
  // The stack of the calling thread; null if none is wanted. Takes the GIL.
  std::shared_ptr<torch::CapturedTraceback> stack() const;

  // The program's line in which the calling thread calls a group: "train.py:31". Empty outside of
  // Python. Takes the GIL.
  std::string site() const;
  // Once, before the first operation.
  void findSitesBy(std::string (*finder)()) { find_site_ = finder; }
  // As site(), where stacks are wanted.
  std::string siteForErrors() const { return stacks_.load() ? site() : std::string(); }

  // The id of the new entry; `record`'s id, times, thread and traceback are filled in here.
  std::uint64_t add(OpRecord record);
  void started(std::uint64_t id) noexcept;
  void ended(std::uint64_t id, bool failed) noexcept;

  // Nothing: newer ones have taken its place.
  std::optional<OpRecord> entry(std::uint64_t id);
  // The oldest first.
  std::vector<OpRecord> entries() const;
  std::vector<GroupRecord> groups() const;
  // How many of this process's operations have failed, recorded or not.
  void countFailure() noexcept { failures_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t failures() const noexcept { return failures_.load(std::memory_order_relaxed); }

 private:
  OpRecorder() = default;
  OpRecord* find(std::uint64_t id) noexcept;

  std::string (*find_site_)() = nullptr;
  std::atomic<std::size_t> size_{0};
  std::atomic<bool> stacks_{false}, cpp_stacks_{false};
  std::atomic<std::uint64_t> failures_{0};
  mutable std::mutex mutex_;
  std::vector<OpRecord> ring_;  // the entry `id` is at (id - first_) % size
  std::vector<GroupRecord> groups_;
  std::uint64_t first_ = 0, next_ = 0;  // ids: the first since start(), and the next
};

// Records one operation while it runs; does nothing if the operation is not recorded. The
// destructor records the end if nothing else has: a failure if an exception is the reason.
class WEFT_API TrackedOp {
 public:
  TrackedOp() = default;
  explicit TrackedOp(std::uint64_t id) : id_(id) {}
  // Not recorded; an error's text needs to know what it was.
  explicit TrackedOp(OpRecord own) : own_(std::make_unique<OpRecord>(std::move(own))) {}
  TrackedOp(TrackedOp&& other) noexcept
      : id_(std::exchange(other.id_, std::nullopt)),
        own_(std::move(other.own_)),
        exceptions_(other.exceptions_) {}
  TrackedOp& operator=(TrackedOp&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(own_, other.own_);
    return *this;
  }
  ~TrackedOp();

  void start() noexcept;
  void end(bool failed) noexcept;
  // What it is, before its end. Nothing: neither recorded nor given, or long ago.
  std::optional<OpRecord> record() const;

 private:
  std::optional<std::uint64_t> id_;
  std::unique_ptr<OpRecord> own_;
  int exceptions_ = std::uncaught_exceptions();
};

// The shapes of what an operation reads or writes.
std::vector<TensorShape> shapesOf(const std::vector<at::Tensor>& tensors);

}  // namespace weft::process_group
