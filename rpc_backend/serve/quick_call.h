// Quick and native calls (script_service.h has their names): scripted calls of Weft's own, which
// need neither torch nor a worker. A ScriptService runs them, and its result is there when it
// returns.
//
// A quick call is short. The request server runs it on the thread that reads it, because a hop to a
// worker would take longer. Its service must neither wait nor call out. Its name begins with
// kQuick.
//
// A native call is answered even while Python calls that wait for the GIL fill all workers: a
// completer runs it, and it may wait there. It has no tensors, does not wait for earlier calls of
// its caller, and records of calls do not show it. Its name begins with kNative.
#pragma once

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

class IncomingMessage;

// Whether a message looks like one and is short; runQuick() and runNative() check it.
bool looksQuick(const IncomingMessage& request);
bool looksNative(const IncomingMessage& request);

// Run the call and return its answer. They throw std::exception, whose text the caller gets; also
// if the message is no such call.
MessagePtr runQuick(const Message& request);   // loop thread
MessagePtr runNative(const Message& request);  // completer

}  // namespace weft::rpc
