// Quick calls: short scripted calls of Weft's own, which a request server runs on the thread that
// reads them. A hop to a worker would take longer than they do.
//
// Their names begin with kQuick. Who serves one (ScriptService) neither waits nor calls out, and
// its result is there when it returns.
#pragma once

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

inline constexpr const char* kQuick = "__weft__.quick.";

class IncomingMessage;

// Whether this looks like one and is short; runQuick() decides.
bool looksQuick(const IncomingMessage& request);

// Runs it and returns its answer. Throws std::exception, whose text the caller gets, also when it
// is none. Loop thread.
MessagePtr runQuick(const Message& request);

}  // namespace weft::rpc
