// From torch's rpc::Message to a transport message; IncomingMessage is the way back.
//
// A message is a header (wire.h) and buffers. A dense CPU tensor is sent from its own memory,
// without a copy; a view is sent as what it shows, not as the storage behind it. Sparse and
// quantised tensors and subclasses without plain storage go through torch's own pickler. What
// becomes of tensors on devices: outgoing_tensors.h.
// requires_grad travels, because distributed autograd needs it. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "rpc_backend/core/device_maps.h"
#include "rpc_backend/wire/wire.h"
#include "transport/base/buffer.h"

namespace weft::rpc {

// Bytes of an element of a c10::ScalarType; 0 for types that raw elements cannot carry.
std::size_t itemSize(std::uint8_t dtype);

class DeviceTransfer;

// Who may lend device memory to the receiver; none by default.
struct DeviceLender {
  DeviceTransfer* devices = nullptr;
  worker_id_t to = -1;
};

// `device_map` maps devices here to the receiver's. Throws c10::Error, which names `peer`, for a
// tensor that cannot be sent, such as one on another accelerator. A large payload is taken out of
// `message` when nobody else holds it, else copied. `timeout`: of a request, 0: none.
transport::Message encode(WireKind kind, std::uint64_t call_id, const MessagePtr& message,
                          const DeviceMap& device_map, const std::string& peer,
                          milliseconds timeout = milliseconds(0), const DeviceLender& lender = {});

// A control message: text that only Weft's agents read.
transport::Message encodeControl(WireKind kind, std::uint16_t type, std::uint64_t call_id,
                                 const std::string& text);

// A message as the same process would receive it from itself: tensors do not share
// memory with the original, so that autograd sees two different leaves. They go where `device_map`
// says, if it says anything; `self` names this worker in errors.
MessagePtr copyForSelf(const Message& message, const DeviceMap& device_map = {},
                       const std::string& self = {});

}  // namespace weft::rpc
