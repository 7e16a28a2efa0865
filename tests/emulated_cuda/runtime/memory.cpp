#include "tests/emulated_cuda/runtime/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "tests/emulated_cuda/runtime/access_check.h"
#include "tests/emulated_cuda/runtime/device.h"
#include "tests/emulated_cuda/runtime/settings.h"

namespace emulated {
namespace {

constexpr std::uint64_t kMemoryMagic = 0x43554441;
constexpr std::size_t kRemembered = 1000;
std::atomic<unsigned long> imported_so_far{0};

struct Imported {
  int opens = 0;
  std::uintptr_t base = 0;
};

struct Tables {
  std::mutex mutex;
  std::map<std::uintptr_t, Allocation> live;
  std::deque<Ended> ended;  // the latest last
  std::map<int, std::size_t> used;
  std::map<ino_t, Imported> imported;  // by the memfd's number
};

Tables& tables() {
  static auto& tables = *new Tables;  // outlives the threads of streams
  return tables;
}

std::uintptr_t asNumber(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

void* map(std::size_t bytes, int descriptor) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  return at == MAP_FAILED ? nullptr : at;
}

void insert(Tables& tables, Allocation made) {
  made.made = Stack::here();
  tables.live.emplace(made.base, made);
}

bool holds(const Allocation& allocation, std::uintptr_t at) {
  return at >= allocation.base && at < allocation.base + allocation.size;
}

auto find(Tables& tables, std::uintptr_t at) {
  auto found = tables.live.upper_bound(at);
  if (found == tables.live.begin()) return tables.live.end();
  --found;
  return holds(found->second, at) ? found : tables.live.end();
}

// Frees the addresses of an allocation that has left the table. Queued work that uses them keeps
// them: it must not end the process before its report is read.
void unmap(const Allocation& gone) {
  const bool used = checkFree(gone.base, gone.size);
  forgetAccesses(gone.base, gone.size);
  if (gone.kind != Allocation::Kind::kRegistered && !used)
    ::munmap(reinterpret_cast<void*>(gone.base), gone.size);
  if (gone.descriptor >= 0) ::close(gone.descriptor);
}

}  // namespace

void* allocateDevice(int device, std::size_t bytes) {
  auto& all = tables();
  const std::lock_guard lock(all.mutex);
  if (all.used[device] + bytes > settings().memory) return nullptr;
  const int descriptor = ::memfd_create("emulated-cuda", MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  void* at =
      ::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 ? map(bytes, descriptor) : nullptr;
  if (at == nullptr) {
    ::close(descriptor);
    return nullptr;
  }
  all.used[device] += bytes;
  insert(all, {Allocation::Kind::kDevice, device, asNumber(at), bytes, descriptor});
  return at;
}

void* allocatePinned(int device, std::size_t bytes) {
  auto& all = tables();
  const std::lock_guard lock(all.mutex);
  void* at = map(bytes, -1);
  if (at != nullptr) insert(all, {Allocation::Kind::kPinned, device, asNumber(at), bytes});
  return at;
}

void registerHost(int device, void* address, std::size_t bytes) {
  auto& all = tables();
  const std::lock_guard lock(all.mutex);
  insert(all, {Allocation::Kind::kRegistered, device, asNumber(address), bytes});
}

bool release(void* address) {
  auto& all = tables();
  Allocation gone;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.live.find(asNumber(address));
    if (found == all.live.end()) return false;
    gone = found->second;
    if (gone.kind == Allocation::Kind::kDevice) all.used[gone.device] -= gone.size;
    all.live.erase(found);
    all.ended.push_back({gone, Stack::here()});
    if (all.ended.size() > kRemembered) all.ended.pop_front();
  }
  unmap(gone);
  return true;
}

std::optional<Ended> findEnded(const void* address) {
  auto& all = tables();
  const std::lock_guard lock(all.mutex);
  for (auto ended = all.ended.rbegin(); ended != all.ended.rend(); ++ended)
    if (holds(ended->was, asNumber(address))) return *ended;
  return std::nullopt;
}

std::optional<Allocation> findAllocation(const void* address) {
  auto& all = tables();
  const std::lock_guard lock(all.mutex);
  const auto found = find(all, asNumber(address));
  if (found == all.live.end()) return std::nullopt;
  return found->second;
}

bool isLive(const void* address, std::size_t bytes) {
  const auto found = findAllocation(address);
  return found && asNumber(address) + bytes <= found->base + found->size;
}

std::size_t bytesFree(int device) {
  auto& all = tables();
  const std::lock_guard lock(all.mutex);
  return settings().memory - all.used[device];
}

std::optional<MemoryHandle> exportMemory(const void* address) {
  const auto found = findAllocation(address);
  if (!found || found->kind != Allocation::Kind::kDevice) return std::nullopt;
  return MemoryHandle{kMemoryMagic, ::getpid(), found->descriptor, numberOnMachine(found->device),
                      found->size};
}

unsigned long imports() { return imported_so_far; }

void* importMemory(const MemoryHandle& handle) {
  if (handle.magic != kMemoryMagic || handle.process == ::getpid()) return nullptr;
  const auto path =
      "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat found {};
  const bool same = descriptor >= 0 && ::fstat(descriptor, &found) == 0 &&
                    static_cast<std::uint64_t>(found.st_size) == handle.size;
  void* at = nullptr;
  if (same) {
    auto& all = tables();
    const std::lock_guard lock(all.mutex);
    Imported& imported = all.imported[found.st_ino];
    if (imported.opens == 0) {
      imported.base = asNumber(map(handle.size, descriptor));
      if (imported.base != 0)
        insert(all, {Allocation::Kind::kImported, deviceOfNumber(handle.device), imported.base,
                     handle.size});
    }
    if (imported.base != 0) {
      ++imported.opens;
      ++imported_so_far;
    }
    at = reinterpret_cast<void*>(imported.base);
  }
  if (descriptor >= 0) ::close(descriptor);
  return at;
}

bool closeImported(void* address) {
  auto& all = tables();
  {
    const std::lock_guard lock(all.mutex);
    auto found = all.imported.begin();
    while (found != all.imported.end() &&
           (found->second.opens == 0 || found->second.base != asNumber(address)))
      ++found;
    if (found == all.imported.end()) return false;
    if (--found->second.opens > 0) return true;
    all.imported.erase(found);
  }
  return release(address);
}

}  // namespace emulated
