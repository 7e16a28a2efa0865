// libFuzzer: shared memory between a sender and a receiver of whom one lies. The receiver gets
// offers and descriptors of anything, in memory of any size and seals, whose words change under it;
// the sender has a receiver that writes what it likes into the words that both see. Neither reaches
// outside of the memory, and the sender never gives out a block twice.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "tests/support/fuzz_input.h"
#include "transport/arena/arena_view.h"
#include "transport/arena/shared_arena.h"
#include "transport/memory/exported_block.h"

namespace {

using namespace weft::transport;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;

constexpr std::uint32_t kSlots = 8;

UniqueFd anyMemory(FuzzInput& input, std::uint64_t& bytes) {
  static constexpr std::array<std::uint64_t, 4> kSizes{0, 4096, kArenaDataOffset,
                                                       kArenaDataOffset + 65536};
  // Seldom so much that it gets huge pages, which take long to clear.
  const std::uint64_t most = input.oneIn(16) ? std::uint64_t{4} << 20 : std::uint64_t{256} << 10;
  bytes =
      input.oneIn(4) ? input.number<std::uint32_t>() % most : kSizes[input.below(kSizes.size())];
  if (input.oneIn(16)) return UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
  const int seals = input.oneIn(4) ? static_cast<int>(input.below(32)) & ~F_SEAL_SEAL : all;
  static_cast<void>(::fcntl(fd.get(), F_ADD_SEALS, seals & ~F_SEAL_FUTURE_WRITE));
  if (input.oneIn(2)) static_cast<void>(::fcntl(fd.get(), F_ADD_SEALS, seals));
  return fd;
}

void touch(const OwnedBuffer& buffer) {
  buffer.data[0] = std::byte{1};
  buffer.data[buffer.size - 1] = std::byte{2};
}

ArenaDescriptor anyPlace(FuzzInput& input) {
  ArenaDescriptor where;
  where.slot = input.oneIn(8) ? input.number<std::uint32_t>()
                              : static_cast<std::uint32_t>(input.below(kSlots));
  where.offset = kArenaDataOffset + input.below(8) * 8192;
  if (input.oneIn(4)) where.offset = input.number<std::uint64_t>();
  return where;
}

std::uint64_t anySize(FuzzInput& input) {
  return input.oneIn(4) ? input.number<std::uint64_t>() : input.number<std::uint16_t>();
}

void lieToReceiver(FuzzInput& input) {
  std::uint64_t bytes = 0;
  const UniqueFd fd = anyMemory(input, bytes);
  ArenaOffer offer{bytes, kSlots, {}};
  if (input.oneIn(8)) offer.file_bytes = input.number<std::uint64_t>();
  if (input.oneIn(8)) offer.slot_count = input.number<std::uint32_t>();
  if (input.oneIn(16)) offer.magic[3] = std::byte{1};
  const auto view = ArenaView::open(offer, fd, std::uint64_t{1} << 22);
  if (!view.ok()) return;
  // The sender's own mapping, through which it changes what it has offered.
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  require(base != MAP_FAILED);
  std::vector<OwnedBuffer> lent;
  while (!input.empty()) {
    arenaSlot(static_cast<std::byte*>(base), static_cast<std::uint32_t>(input.below(kSlots)))
        .store(input.number() % 4);
    if (input.oneIn(4)) lent.clear();
    const std::uint64_t size = anySize(input);
    const auto buffer = view.value()->lend(anyPlace(input), size);
    if (!buffer.ok()) continue;
    require(buffer.value().size == size);
    touch(buffer.value());
    lent.push_back(buffer.value());
  }
  ::munmap(base, bytes);
}

void lieAboutExportedMemory(FuzzInput& input) {
  static const ExportedBlock::Cache cache;
  std::uint64_t bytes = 0;
  auto file = ExportedFile::open(anyMemory(input, bytes));
  if (!file.ok()) return;
  std::vector<std::shared_ptr<ExportedBlock>> blocks;
  while (!input.empty()) {
    if (input.oneIn(4)) blocks.clear();
    const std::uint64_t offset =
        input.oneIn(4) ? input.number<std::uint64_t>() : input.number<std::uint16_t>();
    const std::uint64_t size = anySize(input);
    auto block = ExportedBlock::open(file.value(), offset, size);
    if (!block.ok()) continue;
    require(block.value()->size() == size && size <= bytes);
    if (input.oneIn(2)) {
      touch({block.value()->data(), block.value()->size(), nullptr});
    } else {
      require(block.value()->data()[size - 1] <= std::byte{255});
    }
    blocks.push_back(std::move(block).value());
  }
}

// What the sender has out: to be written, or with the receiver.
struct Out {
  ArenaDescriptor block;
  std::size_t size = 0;
  bool handed_over = false;
};

void expectApart(const std::vector<Out>& out, const ArenaDescriptor& block, std::size_t size) {
  for (const Out& other : out) {
    if (other.handed_over) continue;  // the receiver may have released it
    require(other.block.slot != block.slot);
    require(block.offset + size <= other.block.offset ||
            other.block.offset + other.size <= block.offset);
  }
}

void lieToSender(FuzzInput& input) {
  static const auto& arena = *new std::shared_ptr<SharedArena>(
      SharedArena::create(std::uint64_t{2} << 20, kSlots).value());
  std::byte* const base = arena->bytes({});
  std::vector<Out> out;
  const auto some = [&]() -> Out* { return out.empty() ? nullptr : &out[input.below(out.size())]; };
  const auto forget = [&](Out* gone) { out.erase(out.begin() + (gone - out.data())); };
  while (!input.empty()) {
    switch (input.below(6)) {
      case 0:
      case 1: {
        const std::size_t size = std::size_t{input.number<std::uint16_t>()} * 4 + 1;
        const auto block = arena->take(size);
        if (!block) break;
        expectApart(out, *block, size);
        touch({arena->bytes(*block), size, nullptr});
        out.push_back({*block, size});
        break;
      }
      case 2:
        if (Out* one = some(); one != nullptr && !one->handed_over) {
          arena->handOver(one->block);
          one->handed_over = true;
        }
        break;
      case 3:
        if (Out* one = some(); one != nullptr && one->handed_over) {
          arena->withdraw(one->block);
          forget(one);
        }
        break;
      case 4:
        if (Out* one = some(); one != nullptr && !one->handed_over) {
          arena->giveBack(one->block);
          forget(one);
        }
        break;
      default:
        arenaSlot(base, static_cast<std::uint32_t>(input.below(kSlots))).store(input.number() % 5);
        if (input.oneIn(8)) base[input.below(64)] = std::byte{0xee};
    }
  }
  for (const Out& one : out) {
    if (!one.handed_over) arena->giveBack(one.block);
  }
  for (std::uint32_t i = 0; i < kSlots; ++i)
    arenaSlot(base, i).store(kSlotFree);
  require(arena->blocksInUse() == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  switch (input.below(3)) {
    case 0:
      lieToReceiver(input);
      break;
    case 1:
      lieAboutExportedMemory(input);
      break;
    default:
      lieToSender(input);
  }
  return 0;
}
