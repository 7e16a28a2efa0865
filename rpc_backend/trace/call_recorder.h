// CallRecorder: the last calls that this process made and served, for the flight record and for
// weft.trace (weft/_observe). Off until start(); then a call costs two short locks at each end.
//
// Threads: any thread may call any member. One per process, never destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/core/torch_names.h"
#include "transport/base/api.h"

namespace torch {
struct CapturedTraceback;
}

namespace weft::rpc {

// One call, as its caller or its callee sees it. Times are nanoseconds since 1970; 0: not yet.
struct CallRecord {
  std::uint64_t call = 0;  // the caller's number of it: the same at both ends
  worker_id_t peer = -1;   // the callee, or the caller
  CallKind kind = CallKind::kOther;
  std::array<char, 64> name{};  // of the function, cut to fit; empty where none is known
  std::uint64_t request_bytes = 0, answer_bytes = 0;
  std::int64_t created_ns = 0;  // made; at the callee: read from the connection
  std::int64_t started_ns = 0;  // at the callee: a thread has begun with it
  std::int64_t ended_ns = 0;
  bool failed = false;
  std::int32_t thread = 0;  // the system's number of the one that made it, or runs it
  std::shared_ptr<torch::CapturedTraceback> traceback;  // CallSite's
};

// CallSite: the Python stack of the call that this thread makes next, for its record. Made with the
// GIL, so that to record a call never waits for it. It captures nothing while stacks are not kept.
class WEFT_API CallSite {
 public:
  CallSite();
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;
};

class WEFT_API CallRecorder {
 public:
  using Entry = std::optional<std::uint64_t>;  // nothing: it is not recorded

  static CallRecorder& get();

  // Keeps the last `size` calls of each direction from now on, with the stacks of CallSite if
  // `stacks`; 0 ends it.
  void start(std::size_t size, bool stacks);
  bool on() const noexcept { return size_.load(std::memory_order_relaxed) != 0; }
  bool keepsStacks() const noexcept { return stacks_.load(std::memory_order_relaxed); }
  // The time of a record; 0 while nothing is recorded.
  std::int64_t now() const noexcept;

  // A call that this process makes. `payload`: innermost().
  void made(std::uint64_t call, worker_id_t to, MessageType type, std::span<const char> payload,
            const Message& message);
  void answered(std::uint64_t call, std::uint64_t bytes, bool failed) noexcept;

  // A request that is about to run here; `arrived` is what now() was when it came.
  Entry serves(std::uint64_t call, worker_id_t from, const Message& message, std::int64_t arrived);
  void served(Entry entry, bool failed) noexcept;

  struct Calls {
    std::vector<CallRecord> made, served;  // the oldest first
  };
  Calls calls() const;

 private:
  CallRecorder() = default;

  std::atomic<std::size_t> size_{0};
  std::atomic<bool> stacks_{false};
  mutable std::mutex mutex_;
  std::vector<CallRecord> made_;    // a call is at its number % size
  std::vector<CallRecord> served_;  // the entry n at n % size
  std::uint64_t next_served_ = 0;
};

// How many bytes a message has in its payload and its tensors.
std::uint64_t bytesOf(const Message& message);

}  // namespace weft::rpc
