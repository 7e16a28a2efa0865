// The kinds of calls, by the type of their message. They decide how a call may be waited for and
// ended. Any thread.
#pragma once

#include <array>
#include <cstdint>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

// What a call asks for.
enum class CallKind : std::uint8_t {
  kScript,  // an operator, or a TorchScript function
  kPython,
  kRemote,  // the creation of an RRef
  kFetch,   // an RRef's value
  kOther,   // messages about RRefs, backward passes
};
inline constexpr std::array<const char*, 5> kCallKinds{"script", "python", "remote", "fetch",
                                                       "other"};

CallKind kindOf(MessageType type);

// The calls that create an RRef's value.
bool createsRRef(MessageType type);

// RRef.to_here(), for which RequestClient::send() waits; and fetches in the background.
bool isFetch(MessageType type);

// The calls for which a thread takes its InlineWaiter. Other messages must not claim it: a
// collected RRef may send one from the thread that is about to wait for its call.
bool mayHaveWaiter(MessageType type);

// Calls that nobody but their caller waits for. A call that makes an RRef's value runs in any case,
// because others may wait for the value; so does one that keeps tables right.
bool mayBeDropped(MessageType type);

// The calls that a user makes. The deadline of the request in which they are made ends them, too.
// The others keep tables right, or belong to a backward pass of torch's.
bool isUserCall(MessageType type);

}  // namespace weft::rpc
