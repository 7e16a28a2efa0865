// Memory that processes share: a memfd that can never shrink; else touching it could end a process
// that mapped it with SIGBUS. Any thread.
#pragma once

#include <cstdint>

#include "transport/base/error.h"
#include "transport/base/os/unique_fd.h"

namespace weft::transport {

// A file in memory with so many bytes and these seals (F_SEAL_…); 0: it can still be sealed.
Result<UniqueFd> makeMemory(const char* name, std::uint64_t bytes, int seals = 0);

// Obtains memory for a part of `fd`, from `offset` on, which is mapped shared at `at`: a lack of
// it is an error (kSystem) here, not a signal when it is touched.
Error obtainMemory(int fd, std::uint64_t offset, std::byte* at, std::uint64_t bytes);

// How large a file in memory is, and which one it is.
struct SealedMemory {
  std::uint64_t bytes = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
};

// The memory behind `fd`. kProtocol: it lacks `seals` (F_SEAL_…; F_SEAL_SHRINK should be among
// them), or is a file on a disk. kSystem: the kernel gave no answer.
Result<SealedMemory> sealedMemory(int fd, int seals);

}  // namespace weft::transport
