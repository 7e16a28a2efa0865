// What a group does with its c10d Store besides reading and writing. Any thread that may use a
// Store; not the loop thread.
#pragma once

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

// True once all keys are there, false when `limit` has passed; Ctrl-C ends the wait by throwing
// what its handler raised. It looks the less often the longer the wait has lasted, so that many
// that wait do not keep the Store busy; `since`: when a wait in slices began. Store::wait() does it
// too, but TCPStore logs a warning for each timeout that runs out, and a wait in slices lets many
// run out.
bool waitForKeys(c10d::Store& store, const std::vector<std::string>& keys, milliseconds limit,
                 std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now());

// The first `most` of `ranks` whose key is not there, in their order: one question to the Store if
// all are there, else about k log n for k of n.
std::vector<std::int32_t> absentRanks(c10d::Store& store, std::span<const std::int32_t> ranks,
                                      const std::function<std::string(std::int32_t)>& key_of,
                                      std::size_t most = SIZE_MAX);

// Throws c10::DistNetworkError that says that the process which serves the Store has ended, with
// its address, where torch's TCPStore says "Broken pipe".
[[noreturn]] void throwServerGone(const c10::intrusive_ptr<c10d::Store>& store,
                                  const c10::DistNetworkError& error);

}  // namespace weft::rpc
