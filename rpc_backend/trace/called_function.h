// The function that a call asks for, as far as its message tells; for people to read. Total; any
// thread.
#pragma once

#include <span>
#include <string_view>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

// The function's name, without its module; a view of the payload. Empty: it is not known.
std::string_view functionOf(MessageType type, std::span<const char> payload);

}  // namespace weft::rpc
