#include "tests/emulated_cuda/runtime/report.h"

#include <execinfo.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "tests/emulated_cuda/runtime/memory.h"

namespace emulated {
namespace {

constexpr unsigned long kPrinted = 3;
std::atomic<unsigned long> counted{0};

}  // namespace

Stack Stack::here() {
  Stack stack;
  stack.size = ::backtrace(stack.frames.data(), static_cast<int>(stack.frames.size()));
  return stack;
}

void Stack::print(const char* heading) const {
  std::fprintf(stderr, "emulated CUDA: %s:\n", heading);
  ::backtrace_symbols_fd(frames.data(), size, STDERR_FILENO);
}

unsigned long findings() { return counted; }

bool addFinding() { return ++counted <= kPrinted || expectsFindings(); }

bool expectsFindings() { return std::getenv("EMULATED_CUDA_EXPECT_FINDINGS") != nullptr; }

void reportBadUse(const char* operation, const void* address, std::size_t bytes) {
  const auto live = findAllocation(address);
  const auto ended = live ? std::nullopt : findEnded(address);
  if (!addFinding()) return;
  std::fprintf(stderr, "emulated CUDA: %s: %s of %zu bytes at %p: no live allocation holds them\n",
               ended ? "use after free" : "use out of bounds", operation, bytes, address);
  Stack::here().print("the use");
  if (ended) ended->end.print("it was freed by");
  if (live) live->made.print("what begins there was allocated by");
  if (ended) ended->was.made.print("it was allocated by");
}

}  // namespace emulated
