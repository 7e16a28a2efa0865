// Huge pages: where memory is mapped, that it becomes huge where the system has such pages, and
// that it is the file's memory whatever becomes of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "transport/memory/pages.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {
namespace {

constexpr std::uint64_t kHuge = kMemoryChunk;

class Mapping {
 public:
  Mapping(std::uint64_t bytes, int flags, int fd, std::uint64_t offset = 0)
      : bytes_(bytes),
        data_(
            static_cast<std::byte*>(mapAligned(bytes, PROT_READ | PROT_WRITE, flags, fd, offset))) {
  }
  ~Mapping() {
    if (valid()) ::munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool valid() const { return data_ != MAP_FAILED; }
  std::byte* data() const { return data_; }
  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(data_); }

 private:
  const std::uint64_t bytes_;
  std::byte* const data_;
};

// Bytes of the mapping at this address that are huge pages of a shared file.
std::uint64_t hugeBytesAt(std::uint64_t address) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= address && address < end;
    }
    std::uint64_t kilobytes = 0;
    if (inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %lu kB", &kilobytes) == 1) {
      return kilobytes << 10;
    }
  }
  return 0;
}

// Of this process's addresses.
std::uint64_t mappedBytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  file >> pages;
  return pages * pageBytes();
}

// Whether the system gives huge pages.
bool hugePagesAreToBeHad() {
  const auto memory = makeMemory("weft-test", kHuge);
  const Mapping mapping(kHuge, MAP_SHARED, memory.value().get());
  mapping.data()[0] = std::byte{1};
  return ::madvise(mapping.data(), kHuge, MADV_COLLAPSE) == 0;
}

std::uint64_t obtainedBytes(int fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

// First: a system that is slow once is not asked again by the others.
TEST(HugePages, MemoryIsHugeHereAndThereAndGoesBack) {
  const auto memory = makeMemory("weft-test", 4 * kHuge);
  ASSERT_TRUE(memory.ok());
  const int fd = memory.value().get();
  const Mapping here(4 * kHuge, MAP_SHARED, fd);
  const Mapping there(4 * kHuge, MAP_SHARED, fd);
  const Mapping part(2 * kHuge, MAP_PRIVATE, fd, kHuge);
  ASSERT_TRUE(here.valid() && there.valid() && part.valid());
  const bool possible = hugePagesAreToBeHad();
  makeHuge(here.data(), 4 * kHuge);
  std::memset(here.data(), 7, 4 * kHuge);
  EXPECT_EQ(std::memcmp(here.data(), there.data(), 4 * kHuge), 0);
  EXPECT_EQ(std::memcmp(here.data(), part.data(), 2 * kHuge), 0);
  if (!possible) GTEST_SKIP() << "this system gives no huge pages";
  EXPECT_EQ(hugeBytesAt(here.address()), 4 * kHuge);
  EXPECT_EQ(hugeBytesAt(there.address()), 4 * kHuge);
  EXPECT_EQ(hugeBytesAt(part.address()), 2 * kHuge);
  // A write to a private mapping takes a small page, and changes nobody else's.
  part.data()[0] = std::byte{1};
  EXPECT_EQ(here.data()[kHuge], std::byte{7});
  ASSERT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kHuge), 0);
  EXPECT_EQ(obtainedBytes(fd), 3 * kHuge);
  EXPECT_EQ(there.data()[0], std::byte{0});
}

TEST(MapAligned, TheAddressIsAsFarFromABorderAsTheFilesPlace) {
  const auto memory = makeMemory("weft-test", 8 * kHuge);
  ASSERT_TRUE(memory.ok());
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{4096}, kHuge - 4096, kHuge,
                                     kHuge + 8192, 3 * kHuge + 40960}) {
    for (const std::uint64_t bytes : {kHuge, kHuge + 4096, 3 * kHuge}) {
      const Mapping mapping(bytes, MAP_SHARED, memory.value().get(), offset);
      ASSERT_TRUE(mapping.valid()) << errno;
      EXPECT_EQ(mapping.address() % kHuge, offset % kHuge);
      // It is the file's memory there, from the first byte to the last.
      mapping.data()[0] = std::byte{1};
      mapping.data()[bytes - 1] = std::byte{2};
      std::byte found{};
      ASSERT_EQ(::pread(memory.value().get(), &found, 1, static_cast<off_t>(offset)), 1);
      EXPECT_EQ(found, std::byte{1});
      ASSERT_EQ(::pread(memory.value().get(), &found, 1, static_cast<off_t>(offset + bytes - 1)),
                1);
      EXPECT_EQ(found, std::byte{2});
    }
  }
}

TEST(MapAligned, SmallMappingsAndOnesWithoutAFile) {
  const Mapping small(4096, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  ASSERT_TRUE(small.valid());
  const Mapping large(3 * kHuge + 1, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  ASSERT_TRUE(large.valid());
  EXPECT_EQ(large.address() % kHuge, 0U);
  large.data()[3 * kHuge] = std::byte{1};
}

TEST(MapAligned, SaysWhyItFails) {
  errno = 0;
  EXPECT_EQ(mapAligned(4 * kHuge, PROT_READ, MAP_SHARED, -1), MAP_FAILED);
  EXPECT_EQ(errno, EBADF);
}

TEST(MapAligned, LeavesRoomToOthersOnceItIsUnmapped) {
  const auto memory = makeMemory("weft-test", kHuge);
  ASSERT_TRUE(memory.ok());
  const std::uint64_t before = mappedBytes();
  for (int i = 0; i < 100; ++i) {
    const Mapping mapping(kHuge, MAP_SHARED, memory.value().get());
    ASSERT_TRUE(mapping.valid());
  }
  EXPECT_LT(mappedBytes(), before + 10 * kHuge);
}

TEST(MakeHuge, ObtainsWholePiecesOnly) {
  const auto memory = makeMemory("weft-test", 4 * kHuge);
  ASSERT_TRUE(memory.ok());
  const Mapping mapping(4 * kHuge, MAP_SHARED, memory.value().get());
  ASSERT_TRUE(mapping.valid());
  makeHuge(mapping.data(), kHuge - 1);
  makeHuge(mapping.data() + 4096, kHuge);
  EXPECT_EQ(obtainedBytes(memory.value().get()), 0U);
  // One whole piece, the second, and parts of its neighbours.
  makeHuge(mapping.data() + 4096, 2 * kHuge);
  EXPECT_LE(obtainedBytes(memory.value().get()), kHuge);
}

TEST(MakeHuge, TwoThreadsMayAskForTheSame) {
  const auto memory = makeMemory("weft-test", 16 * kHuge);
  ASSERT_TRUE(memory.ok());
  const Mapping mapping(16 * kHuge, MAP_SHARED, memory.value().get());
  ASSERT_TRUE(mapping.valid());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      makeHuge(mapping.data(), 16 * kHuge);
      for (std::uint64_t at = static_cast<std::uint64_t>(i); at < 16 * kHuge; at += 4)
        mapping.data()[at] = static_cast<std::byte>(i + 1);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (std::uint64_t at = 0; at < 16 * kHuge; ++at)
    ASSERT_EQ(mapping.data()[at], static_cast<std::byte>(at % 4 + 1)) << at;
}

}  // namespace
}  // namespace weft::transport
