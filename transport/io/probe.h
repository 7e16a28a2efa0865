// Whether the process behind an address still listens. For decisions before anything is sent to it.
#pragma once

#include <chrono>
#include <string>

namespace weft::transport {

// False at once when nobody does, or when nothing answers within `wait`. Blocks so long: not for
// the loop thread.
bool somebodyListens(const std::string& address, std::chrono::milliseconds wait);

}  // namespace weft::transport
