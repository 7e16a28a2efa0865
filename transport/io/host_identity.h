// Which machine and network namespace this process is in. Two processes with equal, nonempty
// identities reach each other's abstract Unix sockets.
#pragma once

#include <string>

namespace weft::transport {

std::string
hostIdentity();  // "<boot id>-<inode of the net namespace>"; empty when it cannot be told

}  // namespace weft::transport
