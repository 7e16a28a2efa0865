// The start of a group: every rank says something, all read it.
//
// Threads: one at a time. Every wait is bounded; a slow start tells who is missing.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "c10d_plugin/core/key_value.h"

namespace weft::collectives {

// Sets `topic`/`rank` to `value` and returns what all ranks said there, by rank. kTimeout names the
// ranks that said nothing.
transport::Result<std::vector<std::string>> storeAllGather(
    KeyValue& store, const std::string& topic, const std::string& value, int rank, int size,
    std::chrono::steady_clock::time_point deadline);

}  // namespace weft::collectives
