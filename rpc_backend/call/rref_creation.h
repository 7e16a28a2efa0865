// Cleans up after a failed rpc.remote(): torch marks its RRef wrongly or not at all, and a
// to_here() that was called before the failure waits for a value that never comes.
//
// Threads: any.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <string>

#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/torch_private/torch_rrefs.h"

namespace weft::rpc {

// Whether an answer says that `created` has its value; any reference, if what was to be created is
// not known. torch throws for another answer, with the effect below.
bool confirmsCreation(MessageType type, std::span<const char> payload,
                      const std::optional<ForkIds>& created);

// The error of a call of this type. If the creation of an RRef fails with anything but a timeout,
// torch's callback throws (2.11, the error handlers of UserRRef) and callbacks after it never run,
// so rref._get_future().wait() and rpc.shutdown hang. Therefore every failure of rpc.remote() looks
// like a timeout; to_here() says the reason (weft/_torch/patches/rref.py).
//
// `logged`: the log has the reason already.
std::exception_ptr callError(MessageType type, const std::string& text, bool logged);

// Marks the reference that the call with that future was to create as failed
// (torch_rrefs::markFailed), and returns it; null: torch has not noted it. torch notes it right
// after it has sent the call, so this waits for some seconds, in case that thread waits for a core;
// it does not wait when the agent closes.
torch_rrefs::RRefPtr markRRef(const JitFuture& creation, const std::optional<ForkIds>& created,
                              bool closing);

// Marks the reference to this worker's own value that a call with that payload, which was not sent,
// was to create. False: it is not found.
bool markOwnRRef(std::span<const char> payload);

// Drops this worker's own value that `unsent` was to create, if it was to create one: torch keeps
// it until the end of a call that send() has not thrown for.
void dropOwnRRef(const Message& unsent);

}  // namespace weft::rpc
