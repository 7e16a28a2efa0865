#include "tests/emulated_cuda/runtime/event.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <string>
#include <thread>

namespace emulated {
namespace {

constexpr std::uint64_t kEventMagic = 0x45564e54;

// Short sleeps instead of a signal: the one who records may be another process.
void waitFor(const Event::Counts& counts, std::uint64_t number) {
  while (counts.done.load(std::memory_order_acquire) < number)
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void* mapCounts(int descriptor) {
  void* at =
      ::mmap(nullptr, sizeof(Event::Counts), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return at == MAP_FAILED ? nullptr : at;
}

int makeDescriptor() {
  const int descriptor = ::memfd_create("emulated-cuda-event", MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, sizeof(Event::Counts)) != 0) throw std::bad_alloc();
  return descriptor;
}

}  // namespace

// Counts in shared memory are never freed: queued work may still come to them.
Event::Event(bool interprocess) : Event(interprocess ? makeDescriptor() : -1) {}

Event::Event(int descriptor) : descriptor_(descriptor) {
  if (descriptor < 0) {
    counts_ = std::make_shared<Counts>();
    return;
  }
  void* at = mapCounts(descriptor);
  if (at == nullptr) throw std::bad_alloc();
  counts_ = {static_cast<Counts*>(at), [](Counts*) {}};  // zeroes are its first state
}

Event::~Event() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Event* Event::open(const Handle& handle) {
  if (handle.magic != kEventMagic) return nullptr;
  const auto path =
      "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  return new Event(descriptor);
}

void Event::record(Stream& stream) {
  std::shared_ptr<Counts> counts;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    clock_ = clockOf(stream.number());
    if (!isInterprocess()) counts_ = std::make_shared<Counts>();
    counts = counts_;
    number = counts->asked.fetch_add(1) + 1;
  }
  stream.enqueue([counts, number] { counts->done.store(number, std::memory_order_release); });
  time_ = std::chrono::steady_clock::now().time_since_epoch().count();
}

void Event::makeWait(Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto number = counts_->asked.load();
  if (isInterprocess())
    streamWaitsForAll(stream.number());
  else
    streamWaits(stream.number(), clock_);
  stream.enqueue([counts = counts_, number] { waitFor(*counts, number); });
}

std::shared_ptr<Event::Counts> Event::counts() {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Event::wait() {
  const auto waited = counts();
  waitFor(*waited, waited->asked.load());
  hostKnows();
}

bool Event::isDone() {
  const auto asked = counts();
  if (asked->done.load(std::memory_order_acquire) < asked->asked.load()) return false;
  hostKnows();
  return true;
}

void Event::hostKnows() {
  const std::lock_guard lock(mutex_);
  hostWaits(clock_);
}

Event::Handle Event::handle() const { return {kEventMagic, ::getpid(), descriptor_}; }

// By the times at which the host asked: enough for who only prints it.
float Event::millisecondsSince(const Event& earlier) const {
  const std::chrono::steady_clock::duration passed(time_.load() - earlier.time_.load());
  return std::chrono::duration<float, std::milli>(passed).count();
}

}  // namespace emulated
