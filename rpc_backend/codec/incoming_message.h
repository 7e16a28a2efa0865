// IncomingMessage: one message on its way in. It is made from the header, which says what memory it
// needs, filled by the transport, and finished on a worker thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rpc_backend/codec/device_transfer.h"
#include "rpc_backend/core/call_context.h"
#include "rpc_backend/core/device_maps.h"
#include "rpc_backend/devices/device_arrivals.h"
#include "rpc_backend/wire/wire.h"
#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/memory/warm_pool.h"

namespace weft::rpc {

class IncomingMessage {
 public:
  // Loop thread. Parses the header, checks every length against `sizes` before memory is
  // taken, then allocates: payload and tensors are read in place. Each such buffer's owner is
  // the message itself, so its memory lives as long as somebody may write to it, and none of it is
  // touched before its bytes come. `buffers` has one entry per size; those that have bytes already
  // become the tensors' memory. What is large takes its memory from `pool`, where there is one and
  // it has room. kLimitExceeded: there is no memory; any other error: a malformed message.
  static transport::Result<std::shared_ptr<IncomingMessage>> begin(
      std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
      std::vector<transport::OwnedBuffer>& buffers, transport::WarmPool* pool = nullptr);

  WireKind kind() const noexcept { return kind_; }
  std::uint16_t type() const noexcept { return type_; }
  std::uint64_t callId() const noexcept { return call_id_; }
  // For a request: until when its sender waits for the answer, by this machine's clock, counted
  // from the arrival of the header.
  CallContext::Clock::time_point deadline() const noexcept { return deadline_; }
  // The bytes that it takes here, with what its tensors cost beside their elements.
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
  // Call it for such a message when it is whole. The memory is given back when its tensors have
  // been copied, or with the message.
  void setLender(DeviceTransfer& devices, std::shared_ptr<BorrowedMemory> borrowed) {
    devices_ = &devices;
    borrowed_ = std::move(borrowed);
  }

  // Its large tensors for CUDA devices, which are not whole yet; empty: there are too few bytes of
  // them. copyEarly() gets a DeviceArrivals that was made of them, before their bytes come.
  struct Arriving {
    at::Tensor host;
    c10::Device device;
  };
  std::vector<Arriving> arriving() const;
  void copyEarly(std::shared_ptr<DeviceArrivals> early) { early_ = std::move(early); }

  // Worker thread, once, after the buffers have been read: unpickles what was pickled,
  // moves tensors to their devices (on the current streams). `distrusted`: the sender may be
  // hostile. Tensors in memory that it could still write to are copied, so that no operator sees
  // elements change after it has checked them, and Weft reads what torch pickled. Throws
  // c10::Error.
  MessagePtr finish(bool distrusted = false);

 private:
  IncomingMessage() = default;
  struct Slot {
    TensorForm form = TensorForm::kUndefined;
    bool requires_grad = false;
    c10::Device device{c10::kCPU};
    std::vector<std::int64_t> gaps;  // strides of a layout with gaps; empty for a dense one
    bool shared = false;             // the sender could still write to it
    bool arrives = false;            // dense, for a CUDA device, and its bytes come over a socket
    // Dense: the tensor; pickled: a byte tensor that holds the pickle; kDevice: later.
    at::Tensor tensor;
  };
  void copyLent();
  void takeEarly();
  // `memory`: where the tensor's bytes are, or will be; without data it gets memory of its own.
  static Slot makeSlot(const TensorMeta& meta, const transport::OwnedBuffer& memory);
  static transport::Result<std::shared_ptr<IncomingMessage>> parse(
      std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
      std::vector<transport::OwnedBuffer>& buffers, transport::WarmPool* pool);

  WireKind kind_ = WireKind::kRequest;
  std::uint16_t type_ = 0;
  std::uint64_t call_id_ = 0;
  CallContext::Clock::time_point deadline_ = CallContext::kNever;
  std::size_t bytes_ = 0;
  mutable std::vector<char> payload_;
  // In memory of the sender or of its own; not yet copied into payload_.
  mutable transport::OwnedBuffer shared_payload_;
  std::vector<Slot> slots_;
  // Of the slots of form kDevice, in their order.
  std::vector<DeviceTensorSpec> lent_;
  std::vector<std::byte> token_;
  // Not null: 1 there says that the sender has copied all tensors from its devices.
  const std::byte* staged_ = nullptr;
  std::byte whole_{0};
  std::shared_ptr<DeviceArrivals> early_;  // of the slots that arrive; or null
  DeviceTransfer* devices_ = nullptr;
  std::shared_ptr<BorrowedMemory> borrowed_;
};

}  // namespace weft::rpc
