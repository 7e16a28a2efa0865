// DeviceTransfer: copies of tensors from CUDA device to CUDA device between an agent and workers of
// the same host. It knows whether that works with a worker, which memory of this process they read,
// and which of theirs is read here. Where it does not work, encode() copies to host memory.
//
// A probe finds out whether it works, for each worker and device. The first tensor for a worker
// sends the probe; until the answer comes, and if it is no, tensors go through host memory. Memory
// is lent from encode() until the receiver says that it has been read, or is lost.
//
// Threads: any; the on...() members: the loop thread, which never calls CUDA. Ownership: part of
// MessageSender. Failure: exportTensors() and copyFrom() throw c10::Error; a probe that fails is a
// no with a reason, which is logged.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rpc_backend/devices/device_loans.h"
#include "rpc_backend/devices/device_memory.h"
#include "rpc_backend/threads/agent_context.h"

namespace weft::rpc {

class MessageSender;

// The sender's device memory behind one message that came. Dropped: it has been read, or never will
// be, and its sender is told. By any thread; it calls no CUDA.
class BorrowedMemory {
 public:
  BorrowedMemory(std::shared_ptr<DeviceLoans> loans, const MessageKey& message)
      : loans_(std::move(loans)), message_(message) {
    loans_->borrow();
  }
  ~BorrowedMemory() { loans_->giveBack(message_); }
  BorrowedMemory(const BorrowedMemory&) = delete;
  BorrowedMemory& operator=(const BorrowedMemory&) = delete;
  worker_id_t sender() const noexcept { return message_.peer; }

 private:
  const std::shared_ptr<DeviceLoans> loans_;
  const MessageKey message_;
};

class DeviceTransfer {
 public:
  DeviceTransfer(AgentContext& context, MessageSender& sender);

  // Whether tensors on `device` may be lent to that worker now. Asks it if nobody has yet.
  // `name`: of the worker, for the log.
  bool reaches(worker_id_t peer, c10::Device device, const std::string& name);
  // Lends dense tensors; the token is for copyFrom() there. `bytes` is for the metrics.
  std::vector<std::byte> lend(const MessageKey& message, std::span<const at::Tensor> tensors);
  // Runs `task` on the loop thread when that message's memory has been read, unless the receiver is
  // lost or this agent ends first. False: it has been, or the message lends none. Loop thread.
  bool whenReturned(const MessageKey& message, std::function<void()> task);
  // A message that lends was not sent.
  void takeBack(const MessageKey& message);

  // A message that lends has come. Call this first for such a message; see copyFrom().
  std::shared_ptr<BorrowedMemory> borrow(const MessageKey& message) const;
  // New tensors with the values of those that the message lends; the copies are queued on the
  // current streams.
  std::vector<at::Tensor> copyFrom(std::shared_ptr<BorrowedMemory> borrowed,
                                   std::span<const std::byte> token,
                                   std::span<const DeviceTensorSpec> wanted);

  // `held`: counts the text to its sender while it waits for a worker; null: there is no room.
  void onProbe(worker_id_t from, std::uint64_t id, std::string text, std::shared_ptr<void> held);
  void onProbed(worker_id_t from, std::uint64_t id, const std::string& problem);
  void onReturned(worker_id_t from, std::uint64_t id, const std::string& kind);
  void onPeerLost(worker_id_t peer);

  // Before the endpoint closes: gives copies in flight a moment, here and at the other workers.
  void settle() const;
  // After it: nothing is lent or kept open any more.
  void close();

  void countStaged(std::uint64_t bytes) noexcept { bytes_staged_ += bytes; }
  std::uint64_t bytesLent() const noexcept { return bytes_lent_; }
  std::uint64_t bytesStaged() const noexcept { return bytes_staged_; }
  std::size_t messagesLent() const { return loans_->size(); }

 private:
  enum class State : std::uint8_t { kUnknown, kAsked, kWorks, kRefused };
  struct Path {
    State state = State::kUnknown;
    std::uint64_t probe = 0;  // the number of the probe that asks
    std::string name;         // of the worker
  };
  using PathKey = std::pair<worker_id_t, c10::DeviceIndex>;

  // Null where there is none.
  std::shared_ptr<DeviceMemory> memory();
  void ask(const PathKey& key, std::uint64_t number);
  void refuse(const PathKey& key, const std::string& why);
  std::string tryProbe(worker_id_t from, const std::string& text);
  void answerProbe(worker_id_t from, std::uint64_t id, const std::string& problem);
  void tellReturned(const MessageKey& message);

  AgentContext& context_;
  MessageSender& sender_;
  const std::shared_ptr<DeviceLoans> loans_;
  mutable std::mutex mutex_;  // guards these; never held over a call of CUDA
  std::shared_ptr<DeviceMemory> memory_;
  bool closed_ = false;
  std::uint64_t next_probe_ = 1;
  std::map<PathKey, Path> paths_;
  std::atomic<std::uint64_t> bytes_lent_{0};
  std::atomic<std::uint64_t> bytes_staged_{0};
};

}  // namespace weft::rpc
