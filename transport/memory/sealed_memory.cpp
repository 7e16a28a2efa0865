#include "transport/memory/sealed_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>

#include "transport/base/os/system_error.h"
#include "transport/memory/pages.h"

namespace weft::transport {

Result<UniqueFd> makeMemory(const char* name, std::uint64_t bytes, int seals) {
  // Beyond this limit growing a file raises a signal that ends the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return systemError("making shared memory within the limit on file sizes (ulimit -f)", EFBIG);
  }
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return systemError("memfd_create for shared memory", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return systemError("sizing shared memory", errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0)
    return systemError("sealing shared memory", errno);
  return fd;
}

Error obtainMemory(int fd, std::uint64_t offset, std::byte* at, std::uint64_t bytes) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{16} << 20;  // a signal repeats no more than this
  for (std::uint64_t done = 0; done < bytes; done += kAtOnce) {
    const std::uint64_t part = std::min(kAtOnce, bytes - done);
    const auto populate = [&] { return ::madvise(at + done, part, MADV_POPULATE_WRITE) == 0; };
    while (::fallocate(fd, 0, static_cast<off_t>(offset + done), static_cast<off_t>(part)) != 0) {
      if (errno != EINTR) {
        return systemError("obtaining " + std::to_string(bytes) + " bytes of shared memory", errno);
      }
      // Older kernels begin anew after each signal, which may come too often to ever finish.
      if (populate()) break;
    }
    // One call instead of a page fault for each 4 KiB; kernels before 5.14 don't know it.
    static_cast<void>(populate());
  }
  return Error::ok();
}

Result<SealedMemory> sealedMemory(int fd, int seals) {
  const int found = ::fcntl(fd, F_GET_SEALS);
  if (found < 0 || (found & seals) != seals) {
    return protocolError(
        "the shared memory it offers is not sealed against " +
        std::string((found < 0 || (found & F_SEAL_SHRINK) == 0) ? "shrinking" : "writing"));
  }
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY)
    return protocolError("the shared memory it offers cannot be read");
  struct stat status {};
  if (::fstat(fd, &status) != 0) return systemError("reading the size of shared memory", errno);
  // Pages of other file systems may be missing when they are touched.
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0) return systemError("reading the kind of shared memory", errno);
  if (system.f_type != TMPFS_MAGIC) {
    return protocolError("what it offers as shared memory is a file of another kind");
  }
  return SealedMemory{static_cast<std::uint64_t>(status.st_size),
                      static_cast<std::uint64_t>(status.st_dev),
                      static_cast<std::uint64_t>(status.st_ino)};
}

}  // namespace weft::transport
