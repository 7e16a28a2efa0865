#include "tests/emulated_cuda/runtime/settings.h"

#include <cstdlib>
#include <string>

namespace emulated {
namespace {

long long number(const char* name, long long standard) {
  const char* value = std::getenv((std::string("EMULATED_CUDA_") + name).c_str());
  return value == nullptr ? standard : std::atoll(value);
}

Settings read() {
  Settings read;
  read.devices = static_cast<int>(number("DEVICES", read.devices));
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
