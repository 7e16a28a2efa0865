// Encodes torch's rpc::Message as a transport message; IncomingMessage decodes it.
//
// A message is a header (wire.h) and buffers. A dense CPU tensor is sent from its own memory,
// without a copy. Of a view only its elements are sent, not the storage behind it. Sparse tensors
// go as their parts; quantised ones, and subclasses without plain storage, through torch's own
// pickler. For tensors on devices see outgoing_tensors.h. requires_grad is sent, because
// distributed autograd needs it.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/wire/wire.h"
#include "transport/base/buffer.h"

namespace weft::rpc {

// Bytes of an element of a c10::ScalarType; 0 for types that raw elements cannot carry.
std::size_t itemSize(std::uint8_t dtype);

class DeviceTransfer;

// What lends device memory to the receiver `to`; by default none is lent.
struct DeviceLender {
  DeviceTransfer* devices = nullptr;
  worker_id_t to = -1;
};

// `device_map` maps devices here to the receiver's. Throws c10::Error, which names `peer`, for a
// tensor that cannot be sent, such as one on an accelerator without a map. A large payload is taken
// out of `message` if nobody else holds that, else copied. `timeout`: of a request; 0: none.
transport::Message encode(WireKind kind, std::uint64_t call_id, const MessagePtr& message,
                          const DeviceMap& device_map, const std::string& peer,
                          milliseconds timeout = milliseconds(0), const DeviceLender& lender = {});

// A control message: text that only Weft's agents read.
transport::Message encodeControl(WireKind kind, std::uint16_t type, std::uint64_t call_id,
                                 const std::string& text);

// The message as this process would receive it from itself. Tensors do not share memory with the
// original, so that autograd sees different leaves. They go to the devices that `device_map` says,
// if it is not empty; `self` names this worker in errors.
MessagePtr copyForSelf(const Message& message, const DeviceMap& device_map = {},
                       const std::string& self = {});

}  // namespace weft::rpc
