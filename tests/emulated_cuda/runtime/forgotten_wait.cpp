#include "tests/emulated_cuda/runtime/forgotten_wait.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace emulated {
namespace {

constexpr int kFrames = 32;

struct Function {
  std::string library;  // empty: none is named
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> places;
};

Function read() {
  const char* value = std::getenv("EMULATED_CUDA_FORGET");
  if (value == nullptr) return {};
  std::istringstream text(value);
  Function read;
  std::string name;
  std::getline(text, name, ':');
  read.library = '/' + name;
  for (std::string place; std::getline(text, place, ',');) {
    unsigned long first = 0;
    unsigned long last = 0;
    if (std::sscanf(place.c_str(), "%lx-%lx", &first, &last) == 2)
      read.places.emplace_back(first, last);
  }
  return read;
}

const Function& forgetful() {
  static const Function function = read();
  return function;
}

bool holds(const Function& function, void* address) {
  Dl_info found{};
  if (::dladdr(address, &found) == 0 || found.dli_fname == nullptr) return false;
  if (!std::string_view(found.dli_fname).ends_with(function.library)) return false;
  const auto at =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(found.dli_fbase);
  // A return address: behind a call, and perhaps the last of the function.
  return std::any_of(function.places.begin(), function.places.end(),
                     [&](const auto& place) { return at > place.first && at <= place.second; });
}

void note() {
  const char* path = std::getenv("EMULATED_CUDA_FORGOTTEN");
  if (path == nullptr) return;
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  [[maybe_unused]] const auto written = ::write(file, ".", 1);
  ::close(file);
}

// Whether it is among so many frames, at most kFrames, of which this function's is the first.
bool isForgottenIn(int most) {
  const Function& function = forgetful();
  if (function.library.empty()) return false;
  std::array<void*, kFrames> frames{};
  const int count = ::backtrace(frames.data(), most);
  for (int at = 0; at < count; ++at) {
    if (!holds(function, frames[static_cast<std::size_t>(at)])) continue;
    note();
    return true;
  }
  return false;
}

}  // namespace

bool isForgotten() { return isForgottenIn(kFrames); }

// This and the runtime's function may or may not have frames of their own; they hold no place that
// a test names.
bool isForgottenByCaller() { return isForgottenIn(4); }

}  // namespace emulated
