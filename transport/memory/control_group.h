// The limit on memory that the control groups (cgroup) of this process set, of version 2 or 1. Any
// thread.
#pragma once

#include <cstdint>
#include <string>

namespace weft::transport {

// 0: none, or the system does not say.
std::uint64_t controlGroupBytes();

// Likewise, for a process whose /proc/PID/cgroup has the text `groups`; `mount` is
// /sys/fs/cgroup. The least limit of the group and those around it.
std::uint64_t controlGroupBytes(const std::string& groups, const std::string& mount);

}  // namespace weft::transport
