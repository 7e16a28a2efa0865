// What a group does with its c10d Store besides reading and writing. Any thread that may use a
// Store; not the loop thread.
#pragma once

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

// True once all keys are there, false when `limit` has passed. It looks every millisecond at first,
// later every 50 ms; Ctrl-C ends the wait by throwing what its handler raised. Store::wait() does
// it too, but TCPStore logs a warning for each timeout that runs out, and a wait in slices lets
// many run out.
bool waitForKeys(c10d::Store& store, const std::vector<std::string>& keys, milliseconds limit);

// Throws c10::DistNetworkError that says that the process which serves the Store has ended, with
// its address, where torch's TCPStore says "Broken pipe".
[[noreturn]] void throwServerGone(const c10::intrusive_ptr<c10d::Store>& store,
                                  const c10::DistNetworkError& error);

}  // namespace weft::rpc
