// Whether other users can read or change a file with a secret. Any thread.
#pragma once

#include <sys/stat.h>

#include <string>

namespace weft::transport {

// Empty, or how `what`, the file at `path`, is open to others, and the command that closes it. Its
// group may read it; it belongs to this user or to root.
std::string whyNotSecret(const struct stat& info, const std::string& what, const std::string& path);

}  // namespace weft::transport
