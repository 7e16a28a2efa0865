#include "transport/arena/arena_sender.h"

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "transport/base/log.h"
#include "transport/memory/fast_memcpy.h"
#include "transport/memory/pages.h"

namespace weft::transport {
namespace {

using Blocks = std::vector<std::shared_ptr<ExportedBlock>>;

// The block that each buffer of at least `least` bytes is a part of, null for ordinary memory;
// empty: all are ordinary. A block is exported only if the message uses at least a quarter of it: a
// smaller part would keep the whole block alive, and freeze what is written around it.
Blocks blocksOf(const Message& message, std::size_t least) {
  Blocks blocks;
  std::map<const ExportedBlock*, std::uint64_t> sizes;
  for (std::size_t i = 0; i < message.buffers.size(); ++i) {
    const OwnedBuffer& buffer = message.buffers[i];
    if (buffer.size < least) continue;
    std::shared_ptr<ExportedBlock> block = ExportedBlock::find(buffer.data, buffer.size);
    if (block == nullptr) continue;
    sizes[block.get()] += buffer.size;
    blocks.resize(message.buffers.size());
    blocks[i] = std::move(block);
  }
  for (std::shared_ptr<ExportedBlock>& block : blocks) {
    if (block != nullptr && sizes[block.get()] < block->size() / 4) block.reset();
  }
  return blocks;
}

}  // namespace

ArenaSender::ArenaSender(const ArenaOptions& options, std::function<void()> wanted, Help help)
    : options_(options),
      wanted_(std::move(wanted)),
      help_(std::move(help)),
      state_(options.enabled ? State::kIdle : State::kClosed) {}

std::shared_ptr<SharedArena> ArenaSender::arena() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return arena_;
}

bool ArenaSender::isLarge(const OwnedBuffer& buffer) const noexcept {
  return buffer.size >= options_.threshold && buffer.data != nullptr;
}

ArenaPlacement ArenaSender::place(const Message& message, bool may_export) {
  State state = state_.load(std::memory_order_acquire);
  if (state == State::kClosed) return {};
  const auto large = [this](const OwnedBuffer& buffer) { return isLarge(buffer); };
  const auto count = std::count_if(message.buffers.begin(), message.buffers.end(), large);
  if (count == 0) return {};
  if (state == State::kIdle) {
    if (state_.compare_exchange_strong(state, State::kWanted)) wanted_();
    return {};
  }
  std::shared_ptr<SharedArena> arena = state == State::kLive ? this->arena() : nullptr;
  if (arena == nullptr) {
    if (state == State::kRefused) fallbacks_ += static_cast<std::uint64_t>(count);
    return {};
  }
  return placeIn(std::move(arena), message, may_export);
}

ArenaPlacement ArenaSender::placeIn(std::shared_ptr<SharedArena> arena, const Message& message,
                                    bool may_export) {
  const std::vector<OwnedBuffer>& buffers = message.buffers;
  const std::size_t least = std::max(ExportedBlock::kMinBytes, options_.threshold);
  const Blocks blocks = may_export ? blocksOf(message, least) : Blocks();
  ArenaPlacement placement(arena);
  std::size_t exported = 0;
  std::size_t copied = 0;
  for (std::uint32_t index = 0; index < buffers.size(); ++index) {
    const OwnedBuffer& buffer = buffers[index];
    if (!isLarge(buffer)) continue;
    if (!blocks.empty() && blocks[index] != nullptr &&
        placement.addExported(index, buffer, blocks[index])) {
      exported += buffer.size;
    } else if (const std::optional<ArenaDescriptor> block = arena->take(buffer.size)) {
      placement.add(index, *block);
      copied += buffer.size;
    } else {
      fallbacks_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (!placement.entries().empty() && message.filling != nullptr) message.filling->waitForAll();
  copy(message, placement, *arena, copied);
  bytes_sent_.fetch_add(exported + copied, std::memory_order_relaxed);
  return placement;
}

void ArenaSender::copy(const Message& message, const ArenaPlacement& placement,
                       const SharedArena& arena, std::size_t bytes) const {
  static const bool several_cores = std::thread::hardware_concurrency() > 1;
  const bool together = help_ && several_cores && bytes >= SharedCopy::kWorthHelp;
  std::vector<CopyRange> ranges;
  for (const ArenaPlacement::Entry& entry : placement.entries()) {
    if (entry.exported) continue;
    const OwnedBuffer& from = message.buffers[entry.buffer];
    if (together) {
      ranges.push_back({arena.bytes(entry.where), from.data, from.size});
    } else {
      fastMemcpy(arena.bytes(entry.where), from.data, from.size, wayFor(bytes));
    }
  }
  if (!together) return;
  const auto copy = std::make_shared<SharedCopy>(ranges);
  help_(copy);
  copy->finish();
}

ArenaStats ArenaSender::stats() const noexcept {
  return {bytes_sent_.load(std::memory_order_relaxed), fallbacks_.load(std::memory_order_relaxed)};
}

std::shared_ptr<SharedArena> ArenaSender::offer() {
  if (state_.load() == State::kOffered) return arena();
  const std::uint64_t bytes = atMostQuarter(options_.bytes);
  // As many blocks as fit at the threshold, with some to spare for ones that are rounded down.
  const std::uint64_t slots = std::clamp<std::uint64_t>(
      bytes / std::max<std::size_t>(options_.threshold, 1) + 64, 64, kArenaMaxSlots);
  auto made = SharedArena::create(bytes, static_cast<std::uint32_t>(slots));
  if (!made.ok()) {
    log(LogLevel::kWarning,
        "large buffers go through the socket, without shared memory: " + made.error().text());
    state_.store(State::kRefused);
    return nullptr;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  arena_ = std::move(made).value();
  state_.store(State::kOffered);
  return arena_;
}

Error ArenaSender::answered(bool accepted) {
  State expected = State::kOffered;
  if (!state_.compare_exchange_strong(expected, accepted ? State::kLive : State::kRefused)) {
    return protocolError(std::string(accepted ? "it accepts" : "it refuses") +
                         " shared memory that was not offered");
  }
  if (!accepted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    arena_.reset();
  }
  return Error::ok();
}

void ArenaSender::close() noexcept {
  state_.store(State::kClosed);
  std::shared_ptr<SharedArena> gone;
  const std::lock_guard<std::mutex> lock(mutex_);
  gone.swap(arena_);
}

void ArenaSender::tick(std::chrono::steady_clock::time_point now) {
  if (state_.load(std::memory_order_relaxed) != State::kLive) return;
  if (const auto memory = arena()) memory->tick(now);
}

}  // namespace weft::transport
