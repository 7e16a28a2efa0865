// ExportedFile: the memfd of exported blocks, with the one descriptor that all blocks of it share
// here.
//
// Threads: any.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "transport/base/error.h"
#include "transport/base/os/unique_fd.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {

class ExportedFile {
 public:
  // What seals the contents. Not F_SEAL_WRITE, which looks at every page for users of it. Without a
  // shared mapping, which its maker has given up by then, this one means the same.
  static constexpr int kContentSeals = F_SEAL_FUTURE_WRITE;

  // What a peer exported. kProtocol: it is not such memory.
  static Result<std::shared_ptr<const ExportedFile>> open(UniqueFd fd);
  ExportedFile(UniqueFd fd, const SealedMemory& memory);
  ~ExportedFile();
  ExportedFile(const ExportedFile&) = delete;
  ExportedFile& operator=(const ExportedFile&) = delete;

  const UniqueFd fd;
  const SealedMemory memory;
  static inline std::atomic<std::size_t> count{0};  // of those that are open
};

}  // namespace weft::transport
