// Reads the type of the message that another message wraps, without torch's unpickler.
//
// torch appends a pickled tuple and its length (8 bytes) to the payload of a wrapped message
// (torch/csrc/distributed/rpc/utils.cpp, writeWrappedPayload); the tuple's first element is the
// inner type. A policy must know that type before anything is unpickled, and know that the
// unpickler sees the same one. So the whole tuple must fit a strict grammar (numbers, strings,
// tuples, lists and dictionaries of them, and the one type annotation that torch's pickler writes),
// in which nothing alters the first element.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace weft::rpc {

struct WrappedMessage {
  std::uint16_t type = 0;               // of the inner message
  std::span<const char> inner_payload;  // the inner message's payload
};

// Nothing when the payload does not end in such a tuple, or when no message has that type
// (kMaxMessageType). Total; any thread.
std::optional<WrappedMessage> readWrappedType(std::span<const char> payload);

}  // namespace weft::rpc
