// Files that a person names, and whether other users can read or change one with a secret. Any
// thread. `what` names the file in errors.
#pragma once

#include <string>

#include "transport/base/error.h"
#include "transport/base/os/unique_fd.h"

namespace weft::transport {

// For reading. A fifo given by mistake would have to be waited for, so it is refused.
Result<UniqueFd> openRegularFile(const std::string& path, const std::string& what);

// Ok, or how the file, opened from `path`, is open to others, and the command that closes it. Its
// group may read it; it belongs to this user or to root.
Error checkSecret(const UniqueFd& file, const std::string& what, const std::string& path);

}  // namespace weft::transport
