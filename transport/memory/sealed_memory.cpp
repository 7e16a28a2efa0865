#include "transport/memory/sealed_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "transport/base/system_error.h"

namespace weft::transport {

Result<UniqueFd> makeMemory(const char* name, std::uint64_t bytes) {
  // Beyond this limit growing a file raises a signal that ends the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return systemError("making shared memory within the limit on file sizes", EFBIG);
  }
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return systemError("memfd_create for shared memory", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return systemError("sizing shared memory", errno);
  }
  return fd;
}

Result<SealedMemory> sealedMemory(int fd, int seals) {
  const int found = ::fcntl(fd, F_GET_SEALS);
  if (found < 0 || (found & seals) != seals) {
    return protocolError(
        "the shared memory it offers is not sealed against " +
        std::string((found < 0 || (found & F_SEAL_SHRINK) == 0) ? "shrinking" : "writing"));
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0) return systemError("asking for the size of shared memory", errno);
  // Pages of other file systems may be missing when they are touched.
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0)
    return systemError("asking for the kind of shared memory", errno);
  if (system.f_type != TMPFS_MAGIC) {
    return protocolError("what it offers as shared memory is a file");
  }
  return SealedMemory{static_cast<std::uint64_t>(status.st_size),
                      static_cast<std::uint64_t>(status.st_dev),
                      static_cast<std::uint64_t>(status.st_ino)};
}

}  // namespace weft::transport
