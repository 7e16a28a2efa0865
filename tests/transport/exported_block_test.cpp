// Memory that is sent without a copy: what freezes, what is noticed, what is refused, what is left.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/transport/recorder.h"
#include "transport/memory/exported_block.h"

namespace weft::transport {
namespace {

constexpr std::size_t kSize = std::size_t{1} << 20;
const auto kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

std::shared_ptr<ExportedBlock> filled(std::size_t size = kSize, int with = 1) {
  auto made = ExportedBlock::create(size);
  EXPECT_TRUE(made.ok());
  std::memset(made.value()->data(), with, size);
  return std::move(made).value();
}

UniqueFd copyOf(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

std::shared_ptr<ExportedBlock> opened(const ExportedBlock& block, std::uint64_t offset = 0,
                                      std::uint64_t size = kSize) {
  const auto file = ExportedFile::open(copyOf(block.fd()));
  EXPECT_TRUE(file.ok());
  auto open = ExportedBlock::open(file.value(), offset, size);
  EXPECT_TRUE(open.ok());
  return std::move(open).value();
}

bool allAre(const std::byte* data, std::size_t size, int value) {
  return std::all_of(data, data + size, [&](std::byte b) { return b == std::byte(value); });
}

int mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:weft-export") != std::string::npos ? 1 : 0;
  return count;
}

int openFiles() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    count +=
        std::filesystem::read_symlink(entry, none).string().find("weft-export") != std::string::npos
            ? 1
            : 0;
  }
  return count;
}

TEST(ExportedBlock, WhatWasOfferedNeverChanges) {
  const auto block = filled();
  std::byte* const address = block->data();
  ASSERT_EQ(block->offer(block->data(), kSize), 0U);
  EXPECT_EQ(block->data(), address);
  const auto there = opened(*block);
  block->data()[5] = std::byte{9};
  std::memset(block->data() + kSize / 2, 8, kSize / 2);
  EXPECT_EQ(block->data()[5], std::byte{9});
  EXPECT_TRUE(allAre(there->data(), kSize, 1));
  // Nor by what the receiver does.
  std::memset(there->data(), 7, kSize);
  EXPECT_TRUE(allAre(opened(*block)->data(), kSize, 1));
  EXPECT_EQ(block->data()[6], std::byte{1});
  EXPECT_EQ(block->data()[kSize - 1], std::byte{8});
  const OwnedBuffer offered = block->offered(0, kSize);
  EXPECT_TRUE(allAre(offered.data, kSize, 1));
}

TEST(ExportedBlock, EveryWriteIsNoticed) {
  const auto block = filled();
  EXPECT_TRUE(block->offer(block->data(), kSize));
  EXPECT_TRUE(block->offer(block->data(), kSize));  // again, untouched
  EXPECT_TRUE(allAre(block->data(), kSize, 1));     // reading is no writing
  EXPECT_TRUE(block->offer(block->data(), kSize));
  block->data()[kSize - 1] = std::byte{1};  // what was there before: still a write
  EXPECT_FALSE(block->offer(block->data(), kSize));
  // Parts without a page that was written are as before.
  EXPECT_EQ(block->offer(block->data() + 8, kSize / 2), 8U);
  EXPECT_FALSE(block->offer(block->data() + kSize - 2 * kPage, 2 * kPage));
  EXPECT_TRUE(block->offer(block->data() + kSize - 2 * kPage, kPage));
  EXPECT_FALSE(block->offer(block->data() + kSize - 2 * kPage, kPage + 1));
}

TEST(ExportedBlock, IsFoundByAnyPartOfIt) {
  const auto block = filled(kSize - 3);
  EXPECT_EQ(ExportedBlock::find(block->data(), kSize - 3), block);
  EXPECT_EQ(ExportedBlock::find(block->data() + 100, 5), block);
  EXPECT_EQ(ExportedBlock::find(block->data() + 1, kSize - 3), nullptr);
  EXPECT_EQ(ExportedBlock::find(block->data() - 1, 5), nullptr);
  std::byte other{};
  EXPECT_EQ(ExportedBlock::find(&other, 1), nullptr);
}

TEST(ExportedBlock, GoesOnAndBackWithoutACopy) {
  const auto block = filled();
  ASSERT_TRUE(block->offer(block->data() + 100, kSize - 100));
  auto there = opened(*block, 100, kSize - 100);
  EXPECT_EQ(ExportedBlock::find(there->data(), 10), there);
  ASSERT_EQ(there->offer(there->data(), there->size()), 100U);
  const auto back = opened(*there, 100, kSize - 100);
  EXPECT_TRUE(allAre(back->data(), back->size(), 1));
  there->data()[0] = std::byte{2};
  EXPECT_FALSE(there->offer(there->data(), there->size()));
  EXPECT_EQ(back->data()[0], std::byte{1});
}

TEST(ExportedBlock, LivesAsLongAsAnybodyHasIt) {
  auto block = filled();
  ASSERT_TRUE(block->offer(block->data(), kSize));
  auto there = opened(*block);
  block.reset();
  EXPECT_EQ(mappings(), 1);
  EXPECT_TRUE(allAre(there->data(), kSize, 1));
  there.reset();
  EXPECT_EQ(mappings(), 0);
  EXPECT_EQ(openFiles(), 0);
}

TEST(ExportedBlock, AMappingThatNobodyWroteToIsKeptForAMoment) {
  const auto block = filled();
  ASSERT_TRUE(block->offer(block->data(), kSize));
  std::optional<ExportedBlock::Cache> cache(std::in_place);
  auto there = opened(*block);
  const std::byte* const address = there->data();
  const auto meanwhile = opened(*block);  // while the first is in use: another
  EXPECT_NE(meanwhile->data(), address);
  there.reset();
  EXPECT_EQ(mappings(), 3);
  there = opened(*block);
  EXPECT_EQ(there->data(), address);
  EXPECT_EQ(ExportedBlock::find(address, kSize), there);
  there->data()[0] = std::byte{3};
  there.reset();  // written to: of no more use
  EXPECT_EQ(mappings(), 2);
  EXPECT_TRUE(allAre(opened(*block)->data(), kSize, 1));
  EXPECT_EQ(mappings(), 3);
  ExportedBlock::Cache::tick(std::chrono::steady_clock::now());
  EXPECT_EQ(mappings(), 3);
  ExportedBlock::Cache::tick(std::chrono::steady_clock::now() + std::chrono::minutes(1));
  EXPECT_EQ(mappings(), 2);
  opened(*block).reset();
  cache.reset();
  EXPECT_EQ(mappings(), 2);
  opened(*block).reset();
  EXPECT_EQ(mappings(), 2);  // nobody keeps any
}

TEST(ExportedBlock, ParentAndChildDoNotSeeEachOthersWrites) {
  const auto fresh = filled();
  const auto sent = filled();
  ASSERT_TRUE(sent->offer(sent->data(), kSize));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool right = allAre(fresh->data(), kSize, 1) && allAre(sent->data(), kSize, 1);
    std::memset(fresh->data(), 5, kSize);
    std::memset(sent->data(), 5, kSize);
    ::_exit(right && allAre(fresh->data(), kSize, 5) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(allAre(fresh->data(), kSize, 1));
  EXPECT_TRUE(allAre(sent->data(), kSize, 1));
  EXPECT_EQ(fresh->offer(fresh->data(), kSize), 0U);
  // Written after a fork: in pages of its own, which a receiver would not see.
  const auto other = filled();
  const pid_t second = ::fork();
  if (second == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(second, &status, 0), second);
  other->data()[0] = std::byte{2};
  EXPECT_FALSE(other->offer(other->data(), kSize));
}

TEST(ExportedBlock, ThreadsOfferAndWriteAtOnce) {
  const auto block = filled();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto offset = block->offer(block->data(), kSize / 2);
        ASSERT_TRUE(offset);
        ASSERT_TRUE(allAre(opened(*block, *offset, kSize / 2)->data(), kSize / 2, 1));
        std::memset(block->data() + kSize / 2 + static_cast<std::size_t>(t) * 1000, i, 1000);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

// What a peer may pass as exported memory.
Error openError(const UniqueFd& fd, std::uint64_t offset, std::uint64_t size) {
  const auto file = ExportedFile::open(copyOf(fd.get()));
  if (!file.ok()) return file.error();
  const auto open = ExportedBlock::open(file.value(), offset, size);
  return open.ok() ? Error::ok() : open.error();
}

TEST(ExportedBlock, WhatIsNotSealedIsRefused) {
  const auto memory = [](int seals) {
    UniqueFd fd(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(kSize)), 0);
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  EXPECT_NE(openError(memory(F_SEAL_FUTURE_WRITE), 0, kSize).text().find("against shrinking"),
            std::string::npos);
  EXPECT_NE(openError(memory(F_SEAL_SHRINK), 0, kSize).text().find("against writing"),
            std::string::npos);
  expectOk(openError(memory(F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE), 0, kSize));
  // A shared mapping that outlives the seal changes what its own peer sent, and no more.
  for (const char* path : {"/dev/zero", "/proc/self/exe", "/tmp"}) {
    const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(openError(fd, 0, 100).code(), ErrorCode::kProtocol) << path;
  }
}

TEST(ExportedBlock, PlacesOutsideOfTheFileAreRefused) {
  const auto block = filled();
  ASSERT_TRUE(block->offer(block->data(), kSize));
  const UniqueFd fd = copyOf(block->fd());
  const std::uint64_t most = ~std::uint64_t{0};
  const std::pair<std::uint64_t, std::uint64_t> places[] = {
      {0, kSize + 1}, {1, kSize}, {kSize, 1}, {kSize - 1, 2}, {most, 1},    {most, most},
      {1, most},      {0, most},  {0, 0},     {kSize, 0},     {most - 1, 2}};
  for (const auto& [offset, size] : places)
    EXPECT_EQ(openError(fd, offset, size).code(), ErrorCode::kProtocol) << offset << " " << size;
  expectOk(openError(fd, kSize - 1, 1));
  EXPECT_EQ(mappings(), 1);
}

TEST(ExportedBlock, ThereIsABoundOnFilesAndBytes) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 80;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  std::vector<std::shared_ptr<ExportedBlock>> held;
  for (int i = 0; i < 20; ++i)
    held.push_back(filled(kPage));
  const auto more = ExportedBlock::create(kPage);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code(), ErrorCode::kLimitExceeded);
  EXPECT_NE(more.error().text().find("20 exported blocks"), std::string::npos);
  // Received ones come all the same; they cannot be sent on without a copy.
  ASSERT_TRUE(held[0]->offer(held[0]->data(), kPage));
  const auto there = opened(*held[0], 0, kPage);
  EXPECT_TRUE(allAre(there->data(), kPage, 1));
  EXPECT_FALSE(there->offer(there->data(), kPage));
  held.pop_back();
  EXPECT_TRUE(ExportedBlock::create(kPage).ok());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  const auto huge = ExportedBlock::create(std::size_t{1} << 46);
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code(), ErrorCode::kLimitExceeded);
  held.clear();
  EXPECT_EQ(ExportedBlock::stats().bytes_held, 0U);
}

TEST(ExportedBlock, AProcessKeepsMappingsForTheRest) {
  const auto block = filled();
  static_cast<void>(block->offer(block->data(), 1));  // freezes it
  auto file = ExportedFile::open(UniqueFd(::dup(block->fd())));
  ASSERT_TRUE(file.ok()) << file.error().text();
  std::vector<std::shared_ptr<ExportedBlock>> held;
  for (int i = 0; i < 33'000; ++i) {
    auto open = ExportedBlock::open(file.value(), 0, 1);
    if (!open.ok()) {
      EXPECT_EQ(open.error().code(), ErrorCode::kSystem);
      EXPECT_NE(open.error().text().find("exported memory are mapped here"), std::string::npos);
      break;
    }
    held.push_back(std::move(open).value());
  }
  EXPECT_EQ(held.size(), 32'767U);
  held.pop_back();
  EXPECT_TRUE(ExportedBlock::open(file.value(), 0, 1).ok());
}

}  // namespace
}  // namespace weft::transport
