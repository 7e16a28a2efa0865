// Between torch's rpc::Message and a transport message.
//
// A message is a header (wire.h) and buffers that point straight into tensor memory: a dense
// CPU tensor is neither copied nor concatenated on the way out, and its bytes are read into
// freshly allocated tensor memory on the way in, or, from a sender on the same host, are the
// memory that it shares: such a tensor is the receiver's own, to write and to resize. Tensors of
// other kinds (sparse, quantised, subclasses without plain storage) go through torch's own pickler.
//
// Views are sent as what they show, not as the storage behind them; permuted dense
// tensors keep their strides. requires_grad travels, because distributed autograd needs it.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rpc_backend/core/device_maps.h"
#include "rpc_backend/wire/wire.h"
#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/memory/warm_pool.h"

namespace weft::rpc {

// Any thread. `device_map` maps devices here to the receiver's: a tensor elsewhere than
// on CPU whose device is missing there throws c10::Error (naming `peer`) and nothing is sent.
// Non-CPU tensors are copied to the host on the current stream, which is waited for. A large
// payload is taken out of `message` when nobody else holds it, else copied.
transport::Message encode(WireKind kind, std::uint64_t call_id,
                          const c10::intrusive_ptr<torch::distributed::rpc::Message>& message,
                          const DeviceMap& device_map, const std::string& peer);

// A control message: text that only Weft's agents read.
transport::Message encodeControl(WireKind kind, std::uint16_t type, std::uint64_t call_id,
                                 const std::string& text);

// One message on its way in: created from its header (which says what memory it needs),
// filled by the transport, finished on a worker thread.
class IncomingMessage {
 public:
  // Loop thread. Parses the header, checks every length against `sizes` before memory is
  // taken, then allocates: payload and tensors are read in place. Each such buffer's owner is
  // the message itself, so its memory lives as long as somebody may write to it. `buffers` has one
  // entry per size; those that have bytes already become the tensors' memory. Large tensors take
  // theirs from `pool`, where there is one and it has room.
  static transport::Result<std::shared_ptr<IncomingMessage>> begin(
      std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
      std::vector<transport::OwnedBuffer>& buffers, transport::WarmPool* pool = nullptr);

  WireKind kind() const noexcept { return kind_; }
  std::uint16_t type() const noexcept { return type_; }
  std::uint64_t callId() const noexcept { return call_id_; }
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t tensorCount() const noexcept { return slots_.size(); }

  // The control text, or the text of an exception.
  std::string text() const { return {payload().data(), payload().size()}; }
  // One thread at a time: the first call may have to copy it out of shared memory.
  const std::vector<char>& payload() const;

  // Worker thread, once, after the buffers have been read: unpickles what was pickled,
  // moves tensors to their devices (on the current streams). Throws c10::Error.
  c10::intrusive_ptr<torch::distributed::rpc::Message> finish();

 private:
  IncomingMessage() = default;
  struct Slot {
    TensorForm form = TensorForm::kUndefined;
    bool requires_grad = false;
    c10::Device device{c10::kCPU};
    std::vector<std::int64_t> gaps;  // strides of a layout with gaps; empty for a dense one
    bool shared = false;             // the sender could still write to it
    at::Tensor tensor;  // dense: the tensor; pickled: a byte tensor that holds the pickle
  };
  // `memory`: where the tensor's bytes are, or will be; without data it gets memory of its own.
  static Slot makeSlot(const TensorMeta& meta, const transport::OwnedBuffer& memory);
  static transport::Result<std::shared_ptr<IncomingMessage>> parse(
      std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
      std::vector<transport::OwnedBuffer>& buffers, transport::WarmPool* pool);

  WireKind kind_ = WireKind::kRequest;
  std::uint16_t type_ = 0;
  std::uint64_t call_id_ = 0;
  std::size_t bytes_ = 0;
  mutable std::vector<char> payload_;
  mutable transport::OwnedBuffer shared_payload_;  // not yet copied into payload_
  std::vector<Slot> slots_;
};

// A message as the same process would receive it from itself: tensors do not share
// memory with the original, so that autograd sees two different leaves.
c10::intrusive_ptr<torch::distributed::rpc::Message> copyForSelf(
    const torch::distributed::rpc::Message& message);

// Bytes of payload and tensors, for metrics and messages.
std::size_t messageBytes(const torch::distributed::rpc::Message& message);

}  // namespace weft::rpc
