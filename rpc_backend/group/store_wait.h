// Waiting for keys of a c10d Store. Store::wait() with a timeout does it too, but TCPStore logs a
// warning each time one runs out, and a wait that looks up now and then lets its timeouts run out.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace weft::rpc {

// True once all keys are there, false when `limit` has passed. Looks every millisecond at first,
// later every 50 ms. Not on the loop thread.
bool waitForKeys(c10d::Store& store, const std::vector<std::string>& keys,
                 std::chrono::milliseconds limit);

}  // namespace weft::rpc
