// The tensors of an outgoing message, each in the form in which it is sent.
//
// A dense CPU tensor goes as it is. One on a CUDA device is lent to a worker that can read that
// device's memory (DeviceTransfer), and else copied to pinned host memory (HostStaging), large ones
// while they are being sent. A sparse one goes as its parts. What else is not only elements in
// memory is pickled by torch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "rpc_backend/codec/device_transfer.h"
#include "rpc_backend/codec/sparse_parts.h"
#include "rpc_backend/devices/host_staging.h"
#include "rpc_backend/wire/wire.h"

namespace weft::rpc {

struct OutgoingTensor {
  TensorForm form = TensorForm::kUndefined;
  c10::Device target{c10::kCPU};  // where the receiver puts it
  at::Tensor dense;               // kDense, kDevice
  transport::OwnedBuffer bytes;   // kDense
  std::string pickle;             // kPickled
  SparseForm sparse;              // kSparse; its parts are the tensors before it
  bool is_part = false;           // of a sparse tensor
};

struct OutgoingTensors {
  std::vector<OutgoingTensor> tensors;  // as given, each sparse one behind its parts
  std::vector<std::byte> token;         // not empty: some are kDevice, and this says where they are
  std::shared_ptr<HostStaging> staging;  // not null: some bytes are not there; see awaitFirst()
};

// The receiver of the message.
struct Recipient {
  const std::string& name;
  const DeviceMap& map;  // from devices here to the recipient's
  MessageKey message{};
  DeviceTransfer* devices = nullptr;  // null: no memory is lent
};

// Any thread. Throws c10::Error, which names the recipient, for a tensor that cannot be sent.
OutgoingTensors prepare(const std::vector<at::Tensor>& tensors, const Recipient& to);

// Throws c10::Error, which names the recipient, where the storage is shorter than what the tensor
// shows: reading it would read beyond it.
void checkMemory(const at::Tensor& tensor, const std::string& peer);

// Throws c10::Error, which names the recipient, for a tensor with a tangent of forward-mode AD, or
// inside a transform of torch.func: a call carries values, so that derivatives would be lost.
void checkNoDerivatives(const at::Tensor& tensor, const std::string& peer);

// Whether the tensor is only elements in memory.
bool isPlain(const at::Tensor& tensor);

}  // namespace weft::rpc
