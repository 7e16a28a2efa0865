// IncomingMessage: one message while it is received. begin() makes it from the header, which says
// what memory it needs; the transport fills that; finish() turns it into torch's Message.
//
// Threads: one at a time: the loop thread until the message is whole, then a worker.
// Ownership: shared by the buffers that are being read; its memory is the Message's afterwards.
// Failure: begin() returns an Error; finish() throws c10::Error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rpc_backend/codec/device_transfer.h"
#include "rpc_backend/codec/sparse_parts.h"
#include "rpc_backend/core/call_context.h"
#include "rpc_backend/devices/device_arrivals.h"
#include "rpc_backend/wire/wire.h"
#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/memory/warm_pool.h"

namespace weft::rpc {

class IncomingMessage {
 public:
  // Loop thread. Parses the header, checks every length against `sizes` before memory is taken,
  // and gives each buffer memory into which the transport reads. The message owns that memory and
  // is each buffer's owner, so the memory lives as long as somebody may write to it.
  // `buffers` gets one entry per size; entries that have bytes already become the tensors' memory.
  // Large buffers come from `pool`, if there is one and it has room. Memory is not touched before
  // its bytes come.
  // kLimitExceeded: there is no memory; any other error: a malformed message.
  static transport::Result<std::shared_ptr<IncomingMessage>> begin(
      std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
      std::vector<transport::OwnedBuffer>& buffers, transport::WarmPool* pool = nullptr);

  WireKind kind() const noexcept { return kind_; }
  std::uint16_t type() const noexcept { return type_; }
  std::uint64_t callId() const noexcept { return call_id_; }
  // When the sender of a request stops waiting for the answer: its timeout, counted from the
  // arrival of the header.
  CallContext::Clock::time_point deadline() const noexcept { return deadline_; }
  // The bytes that it takes here, including what its tensors cost beside their elements.
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t tensorCount() const noexcept { return slots_.size(); }

  // The control text, or the text of an exception.
  std::string text() const { return {payload().data(), payload().size()}; }
  // One thread at a time: the first call may have to copy it.
  const std::vector<char>& payload() const;
  std::size_t payloadSize() const noexcept {
    return shared_payload_.data != nullptr ? shared_payload_.size : payload_.size();
  }

  // Whether tensors are in the sender's device memory.
  bool isLent() const noexcept { return !token_.empty(); }
  // For such a message, when it is whole. The memory is given back when its tensors have been
  // copied, or when the message is destroyed.
  void setLender(DeviceTransfer& devices, std::shared_ptr<BorrowedMemory> borrowed) {
    devices_ = &devices;
    borrowed_ = std::move(borrowed);
  }

  // Its tensors for CUDA devices whose bytes come over a socket; empty if these are too few bytes
  // to be copied piece by piece. copyEarly() takes the DeviceArrivals that copies them.
  struct Arriving {
    at::Tensor host;
    c10::Device device;
  };
  std::vector<Arriving> arriving() const;
  void copyEarly(std::shared_ptr<DeviceArrivals> early) { early_ = std::move(early); }

  // Worker thread, once, after the buffers have been read. Unpickles what was pickled, and moves
  // tensors to their devices (on the current streams). `distrusted`: the sender may be hostile.
  // Tensors in memory that it could still write to are copied, so that no operator sees elements
  // change after it has checked them, and what torch pickled is refused: torch's reader believes
  // the lengths and places in it. Throws c10::Error.
  MessagePtr finish(bool distrusted = false);

 private:
  friend class MessageParser;
  struct Slot {
    TensorForm form = TensorForm::kUndefined;
    bool requires_grad = false;
    c10::Device device{c10::kCPU};
    std::vector<std::int64_t> gaps;  // strides of a layout with gaps; empty for a dense one
    bool shared = false;             // the sender could still write to it
    bool arrives = false;            // dense, for a CUDA device, and its bytes come over a socket
    SparseForm sparse;               // kSparse: how the slots before it belong together
    // kDense: the tensor; kPickled: a byte tensor that holds the pickle; kDevice: set by
    // copyLent(); kSparse: set by finish().
    at::Tensor tensor;
  };
  IncomingMessage() = default;
  void copyLent();
  void takeEarly();
  static at::Tensor finishTensor(Slot& slot, bool distrusted);

  WireKind kind_ = WireKind::kRequest;
  std::uint16_t type_ = 0;
  std::uint64_t call_id_ = 0;
  CallContext::Clock::time_point deadline_ = CallContext::kNever;
  std::size_t bytes_ = 0;
  mutable std::vector<char> payload_;
  // The payload before it is copied into payload_: in the sender's memory, or in its own.
  mutable transport::OwnedBuffer shared_payload_;
  std::vector<Slot> slots_;
  std::vector<DeviceTensorSpec> lent_;  // of the slots of form kDevice, in their order
  std::vector<std::byte> token_;
  // If it has data: there is 1 once the sender has copied all tensors from its devices.
  transport::OwnedBuffer staged_;
  std::byte whole_{0};
  std::shared_ptr<DeviceArrivals> early_;  // copies the slots that arrive; may be null
  DeviceTransfer* devices_ = nullptr;
  std::shared_ptr<BorrowedMemory> borrowed_;
};

}  // namespace weft::rpc
