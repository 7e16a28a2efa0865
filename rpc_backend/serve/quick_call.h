// Quick calls: short scripted calls of Weft's own, which the request server runs on the thread that
// reads them. A hop to a worker would take longer than they do.
//
// A ScriptService runs them: it must neither wait nor call out, and its result is there when it
// returns. Their names begin with kQuick (script_service.h).
#pragma once

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

class IncomingMessage;

// Whether a message looks like one and is short; runQuick() checks it.
bool looksQuick(const IncomingMessage& request);

// Runs the call and returns its answer. Throws std::exception, whose text the caller gets; also if
// the message is no such call. Loop thread.
MessagePtr runQuick(const Message& request);

}  // namespace weft::rpc
