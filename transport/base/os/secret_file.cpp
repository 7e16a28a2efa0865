#include "transport/base/os/secret_file.h"

#include <unistd.h>

namespace weft::transport {

std::string whyNotSecret(const struct stat& info, const std::string& what,
                         const std::string& path) {
  if ((info.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    return what + " can be read or written by every user of this machine; run: chmod 600 '" + path +
           "'";
  }
  if ((info.st_mode & S_IWGRP) != 0)
    return what + " can be written by its group; run: chmod g-w '" + path + "'";
  if (info.st_uid != 0 && info.st_uid != ::geteuid()) {
    return what + " belongs to another user (" + std::to_string(info.st_uid) +
           "), who can change it; use a copy of your own";
  }
  return {};
}

}  // namespace weft::transport
