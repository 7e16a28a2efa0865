// Whether the process behind an address still listens.
#pragma once

#include <chrono>
#include <string>

namespace weft::transport {

// False at once when nobody listens, or when nothing answers within `wait`. Blocks: not for the
// loop thread.
bool somebodyListens(const std::string& address, std::chrono::milliseconds wait);

}  // namespace weft::transport
