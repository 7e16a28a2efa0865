// What the emulation has found wrong: counted, and told on standard error with the stacks of both
// calls that do not fit together. A process with findings ends with status 66.
//
// Threads: any.
#pragma once

#include <array>
#include <cstddef>

namespace emulated {

// A stack of calls: taken where memory is allocated, used and freed.
struct Stack {
  // The calling thread's.
  static Stack here();
  // On standard error, under a line that says whose it is.
  void print(const char* heading) const;

  std::array<void*, 24> frames{};
  int size = 0;
};

unsigned long findings();
// Counts one. True: it is to be printed. One mistake is often made thousands of times, so only the
// first few are, unless EMULATED_CUDA_EXPECT_FINDINGS says that somebody looks for them.
bool addFinding();
bool expectsFindings();

// An operation on [address, address + bytes), which no live allocation holds. Prints the stacks of
// this call and, where that memory was known, of its allocation and of its end.
void reportBadUse(const char* operation, const void* address, std::size_t bytes);

}  // namespace emulated
