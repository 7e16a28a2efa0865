#include "tests/emulated_cuda/runtime/access_check.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>

#include "tests/emulated_cuda/runtime/report.h"

namespace emulated {
namespace {

struct Event {  // one access by one stream
  unsigned stream = 0;
  std::uint64_t time = 0;
  Stack stack;
};

struct Bytes {  // of a range with one history
  std::uintptr_t end = 0;
  std::vector<Event> writes;  // none or one
  std::vector<Event> reads;   // the last of each stream since that write
};

struct State {
  std::mutex mutex;
  std::vector<Clock> streams;
  Clock host;
  std::map<std::uintptr_t, Bytes> ranges;  // by first byte; they do not overlap
};

State& state() {
  static auto& state = *new State;
  return state;
}

void join(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i)
    into[i] = std::max(into[i], other[i]);
}

bool isBefore(const Event& event, const Clock& clock) {
  return event.stream < clock.size() && event.time <= clock[event.stream];
}

void report(const char* what, const Event& first, const Event& second, std::uintptr_t at) {
  if (!addFinding()) return;
  std::fprintf(stderr, "emulated CUDA: race: %s at %#lx: stream %u does not wait for stream %u\n",
               what, at, second.stream, first.stream);
  second.stack.print("the later call");
  first.stack.print("the earlier call");
}

void reportFree(const Event& use, std::uintptr_t at) {
  if (!addFinding()) return;
  std::fprintf(stderr,
               "emulated CUDA: memory freed while queued work uses it: at %#lx: nothing waits for "
               "stream %u\n",
               at, use.stream);
  Stack::here().print("it is freed by");
  use.stack.print("the work is of");
}

// Cuts a range in two where it goes across an address.
void split(std::map<std::uintptr_t, Bytes>& ranges, std::uintptr_t at) {
  auto found = ranges.upper_bound(at);
  if (found == ranges.begin()) return;
  --found;
  if (found->first == at || found->second.end <= at) return;
  Bytes upper = found->second;
  found->second.end = at;
  ranges.emplace(at, std::move(upper));
}

// Makes every byte of [from, to) belong to a range that lies inside it.
void cover(std::map<std::uintptr_t, Bytes>& ranges, std::uintptr_t from, std::uintptr_t to) {
  split(ranges, from);
  split(ranges, to);
  auto at = from;
  while (at < to) {
    auto next = ranges.lower_bound(at);
    if (next != ranges.end() && next->first == at) {
      at = next->second.end;
      continue;
    }
    const auto end = next == ranges.end() ? to : std::min(to, next->first);
    ranges.emplace(at, Bytes{end, {}, {}});
    at = end;
  }
}

void access(Bytes& bytes, std::uintptr_t at, const Event& now, const Clock& clock, bool write) {
  for (const auto& earlier : bytes.writes)
    if (!isBefore(earlier, clock))
      report(write ? "write after write" : "read after write", earlier, now, at);
  if (write) {
    for (const auto& earlier : bytes.reads)
      if (!isBefore(earlier, clock)) report("write after read", earlier, now, at);
    bytes.writes = {now};
    bytes.reads.clear();
    return;
  }
  std::erase_if(bytes.reads, [&](const Event& read) { return read.stream == now.stream; });
  bytes.reads.push_back(now);
}

// An access that is not before this; null: all are.
const Event* firstAfter(const Bytes& bytes, const Clock& clock) {
  for (const auto* uses : {&bytes.writes, &bytes.reads})
    for (const auto& use : *uses)
      if (!isBefore(use, clock)) return &use;
  return nullptr;
}

}  // namespace

unsigned addStream() {
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  all.streams.emplace_back();
  return static_cast<unsigned>(all.streams.size() - 1);
}

void checkLaunch(unsigned stream, std::span<const Access> accesses) {
  auto& all = state();
  Event now{stream, 0, Stack::here()};
  const std::lock_guard lock(all.mutex);
  auto& clock = all.streams[stream];
  join(clock, all.host);
  if (clock.size() <= stream) clock.resize(stream + 1);
  now.time = ++clock[stream];
  for (const auto& [base, size, write] : accesses) {
    if (size == 0) continue;
    cover(all.ranges, base, base + size);
    for (auto at = all.ranges.lower_bound(base); at != all.ranges.end() && at->first < base + size;
         ++at)
      access(at->second, at->first, now, clock, write);
  }
}

Clock clockOf(unsigned stream) {
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  return all.streams[stream];
}

void streamWaits(unsigned stream, const Clock& clock) {
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  join(all.streams[stream], clock);
}

void streamWaitsForAll(unsigned stream) {
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  Clock sum;
  for (const auto& other : all.streams)
    join(sum, other);
  join(all.streams[stream], sum);
}

void hostWaits(const Clock& clock) {
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  join(all.host, clock);
}

bool checkFree(std::uintptr_t base, std::size_t size) {
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  split(all.ranges, base);
  split(all.ranges, base + size);
  for (auto at = all.ranges.lower_bound(base); at != all.ranges.end() && at->first < base + size;
       ++at) {
    if (const auto* use = firstAfter(at->second, all.host)) {
      reportFree(*use, at->first);
      return true;
    }
  }
  return false;
}

void forgetAccesses(std::uintptr_t base, std::size_t size) {
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  split(all.ranges, base);
  split(all.ranges, base + size);
  all.ranges.erase(all.ranges.lower_bound(base), all.ranges.lower_bound(base + size));
}

}  // namespace emulated
