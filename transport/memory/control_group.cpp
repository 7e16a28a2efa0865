#include "transport/memory/control_group.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace weft::transport {
namespace {

constexpr std::uint64_t kNone = ~std::uint64_t{0};

// Version 2 writes "max" where there is no limit, which is no number; version 1 a number beyond any
// machine's memory.
std::uint64_t limitIn(const std::string& file) {
  std::ifstream in(file);
  std::uint64_t bytes = 0;
  return in >> bytes && bytes > 0 ? bytes : kNone;
}

// From `group` to the root. In a container the paths may be the host's, of which only the root is
// there: that one is the container's own.
std::uint64_t leastLimit(const std::string& mount, std::string group, const std::string& file) {
  const std::string name = "/" + file;
  std::uint64_t least = limitIn(mount + name);
  while (group.size() > 1) {
    std::string path = mount;
    least = std::min(least, limitIn(path.append(group).append(name)));
    group.resize(group.find('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  return least;
}

bool namesMemory(const std::string& controllers) {
  return ("," + controllers + ",").find(",memory,") != std::string::npos;
}

}  // namespace

std::uint64_t controlGroupBytes(const std::string& groups, const std::string& mount) {
  std::uint64_t least = kNone;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    // cgroups(7): "hierarchy:controllers:path", with no controllers for version 2.
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', std::min(first, line.size() - 1) + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (group.find("..") != std::string::npos) continue;  // outside of what this process sees
    if (controllers.empty()) least = std::min(least, leastLimit(mount, group, "memory.max"));
    if (namesMemory(controllers))
      least = std::min(least, leastLimit(mount + "/memory", group, "memory.limit_in_bytes"));
  }
  return least == kNone ? 0 : least;
}

std::uint64_t controlGroupBytes() {
  std::ifstream own("/proc/self/cgroup");
  std::ostringstream text;
  text << own.rdbuf();
  return controlGroupBytes(text.str(), "/sys/fs/cgroup");
}

}  // namespace weft::transport
