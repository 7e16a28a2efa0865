#include "tests/emulated_cuda/runtime/settings.h"

#include <cstdlib>
#include <sstream>
#include <string>

namespace emulated {
namespace {

long long number(const char* name, long long standard) {
  const char* value = std::getenv((std::string("EMULATED_CUDA_") + name).c_str());
  return value == nullptr ? standard : std::atoll(value);
}

std::vector<int> visible(int count) {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> found;
  if (value == nullptr) {
    for (int device = 0; device < count; ++device)
      found.push_back(device);
    return found;
  }
  std::istringstream text(value);
  std::string name;
  while (std::getline(text, name, ',')) {
    char* end = nullptr;
    const auto device = std::strtol(name.c_str(), &end, 10);
    if (end == name.c_str() || *end != '\0' || device < 0 || device >= count) break;
    found.push_back(static_cast<int>(device));
  }
  return found;
}

Settings read() {
  Settings read;
  read.devices = visible(static_cast<int>(number("DEVICES", 2)));
  read.seed = static_cast<std::uint64_t>(number("SEED", 0));
  read.max_delay_us = static_cast<unsigned>(number("MAX_DELAY_US", read.max_delay_us));
  read.memory = static_cast<std::size_t>(number("MEMORY", static_cast<long long>(read.memory)));
  read.peer_access = number("PEER_ACCESS", 1) != 0;
  read.ipc = number("IPC", 1) != 0;
  read.fail_copy = number("FAIL_COPY", 0);
  return read;
}

}  // namespace

const Settings& settings() {
  static const Settings settings = read();
  return settings;
}

std::atomic<long>& failingCopy() {
  static std::atomic<long> left{settings().fail_copy};
  return left;
}

std::atomic<long>& failingWait() {
  static std::atomic<long> left{0};
  return left;
}

std::atomic<long>& failingRecord() {
  static std::atomic<long> left{0};
  return left;
}

std::atomic<long>& heldCopy() {
  static std::atomic<long> left{0};
  return left;
}

std::atomic<unsigned long>& copies() {
  static std::atomic<unsigned long> asked{0};
  return asked;
}

std::atomic<bool>& holds() {
  static std::atomic<bool> holds{false};
  return holds;
}

}  // namespace emulated
