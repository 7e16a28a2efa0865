#include "transport/base/os/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "transport/base/os/system_error.h"

namespace weft::transport {

Result<UniqueFd> openRegularFile(const std::string& path, const std::string& what) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0)
    return systemError("opening " + what, errno);
  if (!S_ISREG(info.st_mode)) return invalidArgument(what + " is not a regular file");
  return file;
}

Error checkSecret(const UniqueFd& file, const std::string& what, const std::string& path) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return systemError("reading the status of " + what, errno);
  if ((info.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    return invalidArgument(what + " can be read or written by every user of this machine; run: " +
                           "chmod 600 '" + path + "'");
  }
  if ((info.st_mode & S_IWGRP) != 0)
    return invalidArgument(what + " can be written by its group; run: chmod g-w '" + path + "'");
  if (info.st_uid != 0 && info.st_uid != ::geteuid()) {
    return invalidArgument(what + " belongs to another user (" + std::to_string(info.st_uid) +
                           "), who can change it; use a copy of your own");
  }
  return Error::ok();
}

}  // namespace weft::transport
