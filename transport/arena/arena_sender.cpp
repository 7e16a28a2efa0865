#include "transport/arena/arena_sender.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "transport/base/log.h"
#include "transport/memory/fast_memcpy.h"
#include "transport/memory/pages.h"

namespace weft::transport {

ArenaSender::ArenaSender(const ArenaOptions& options, std::function<void()> wanted, Help help)
    : options_(options),
      wanted_(std::move(wanted)),
      help_(std::move(help)),
      state_(options.enabled ? State::kIdle : State::kClosed) {}

std::shared_ptr<SharedArena> ArenaSender::arena() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return arena_;
}

ArenaPlacement ArenaSender::place(const Message& message, bool may_export) {
  State state = state_.load(std::memory_order_acquire);
  if (state == State::kClosed) return {};
  const auto large = [&](const OwnedBuffer& buffer) {
    return buffer.size >= options_.threshold && buffer.data != nullptr;
  };
  const auto first = std::find_if(message.buffers.begin(), message.buffers.end(), large);
  if (first == message.buffers.end()) return {};
  if (state == State::kIdle) {
    if (state_.compare_exchange_strong(state, State::kWanted)) wanted_();
    return {};
  }
  std::shared_ptr<SharedArena> arena = state == State::kLive ? this->arena() : nullptr;
  if (arena == nullptr) {
    if (state == State::kRefused)
      fallbacks_ += static_cast<std::uint64_t>(std::count_if(first, message.buffers.end(), large));
    return {};
  }
  std::uint64_t large_bytes = 0;
  for (auto buffer = first; buffer != message.buffers.end(); ++buffer) {
    if (large(*buffer)) large_bytes += buffer->size;
  }
  const bool together = large_bytes >= SharedCopy::kWorthHelp;
  std::vector<CopyRange> ranges;
  const Exported blocks = may_export ? exported(message) : Exported();
  ArenaPlacement placement(arena);
  std::uint64_t bytes = 0;
  for (auto buffer = first; buffer != message.buffers.end(); ++buffer) {
    if (!large(*buffer)) continue;
    const auto index = static_cast<std::uint32_t>(buffer - message.buffers.begin());
    if (blocks.empty() || !placeExported(*buffer, index, blocks[index], placement)) {
      const std::optional<SharedArena::Block> block = arena->take(buffer->size);
      if (!block) {
        fallbacks_.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      placement.add(index, block->where);
      if (together) {
        ranges.push_back({block->data, buffer->data, buffer->size});
      } else {
        fastMemcpy(block->data, buffer->data, buffer->size);
      }
    }
    bytes += buffer->size;
  }
  if (!ranges.empty()) copyTogether(std::move(ranges));
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  return placement;
}

// The block that each buffer is a part of, null for ordinary memory; empty: all are ordinary. A
// block is exported only if the message uses at least a quarter of it: a smaller part would keep
// the whole block alive, and freeze what is written around it.
ArenaSender::Exported ArenaSender::exported(const Message& message) const {
  const std::size_t least = std::max(ExportedBlock::kMinBytes, options_.threshold);
  Exported blocks;
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

bool ArenaSender::placeExported(const OwnedBuffer& buffer, std::uint32_t index,
                                const std::shared_ptr<ExportedBlock>& block,
                                ArenaPlacement& placement) {
  if (block == nullptr) return false;
  const std::optional<std::uint64_t> offset = block->offer(buffer.data, buffer.size);
  if (!offset || !placement.add(index, block, *offset)) return false;
  ExportedBlock::countSent(buffer.size);
  return true;
}

void ArenaSender::copyTogether(std::vector<CopyRange> ranges) const {
  static const bool several_cores = std::thread::hardware_concurrency() > 1;
  const auto copy = std::make_shared<SharedCopy>(std::move(ranges));
  if (help_ && several_cores) help_(copy);
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
        "no shared memory for large buffers, they go through the socket: " + made.error().text());
    state_.store(State::kRefused);
    return nullptr;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  arena_ = std::move(made).value();
  state_.store(State::kOffered);
  return arena_;
}

Error ArenaSender::accepted() {
  State expected = State::kOffered;
  if (!state_.compare_exchange_strong(expected, State::kLive)) {
    return protocolError("it accepts shared memory that was not offered");
  }
  return Error::ok();
}

Error ArenaSender::refused() {
  State expected = State::kOffered;
  if (!state_.compare_exchange_strong(expected, State::kRefused)) {
    return protocolError("it refuses shared memory that was not offered");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  arena_.reset();
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
  if (!idle_.look(bytes_sent_.load(std::memory_order_relaxed), now)) return;
  if (const auto memory = arena()) memory->trim(IdleDetector::kKeep, IdleDetector::kTrimAtOnce);
}

}  // namespace weft::transport
