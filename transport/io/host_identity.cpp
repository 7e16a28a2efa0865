#include "transport/io/host_identity.h"

#include <sys/stat.h>

#include <fstream>

namespace weft::transport {

std::string hostIdentity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat info {};
  if (boot_id.size() != 36 || ::stat("/proc/self/ns/net", &info) != 0) return {};
  return boot_id + "-" + std::to_string(info.st_ino);
}

}  // namespace weft::transport
