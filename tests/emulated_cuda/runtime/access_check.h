// Finds two accesses to the same bytes, at least one of them a write, that no stream, event or wait
// orders: what compute-sanitizer's racecheck would call a race between streams. It looks at the
// order that the calls ask for, not at the times they happened to run, so one run is enough.
//
// Vector clocks (Fidge 1988, Mattern 1989): a component per stream. All threads of the host
// share one clock, because the emulation does not see how they order themselves; it may so miss
// a race between host threads, and reports none that is not there. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace emulated {

using Clock = std::vector<std::uint64_t>;  // the last piece of work of each stream that is before

struct Access {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  bool write = false;
};

// A new stream's number.
unsigned addStream();

// Work on a stream that makes these accesses, in the order in which the host asks for it.
// Reports each race on standard error with the stacks of both calls.
void checkLaunch(unsigned stream, std::span<const Access> accesses);

Clock clockOf(unsigned stream);
void streamWaits(unsigned stream, const Clock& clock);
void streamWaitsForAll(unsigned stream);  // after an event of another process
void hostWaits(const Clock& clock);

// Memory is freed, and the host has waited for its device. Reports the first access that the host
// has not waited for all the same, by a stream of another device, with the stacks of both calls,
// and returns true: that work would find the memory gone.
bool checkFree(std::uintptr_t base, std::size_t size);

void forgetAccesses(std::uintptr_t base, std::size_t size);

}  // namespace emulated
