#include "tests/pipe/fake_accelerator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <set>

namespace weft::pipe::fake {

namespace {

constexpr int kDevices = 2;
constexpr auto kType = c10::DeviceType::PrivateUse1;

using Place = std::pair<int, std::int64_t>;  // device and stream; the host is device -1
using Clock = std::map<Place, std::uint64_t>;
constexpr Place kHost{-1, 0};

std::string nameOf(Place place) {
  return "device " + std::to_string(place.first) + "'s stream " + std::to_string(place.second);
}

void join(Clock& into, const Clock& from) {
  for (const auto& [place, count] : from)
    into[place] = std::max(into[place], count);
}

class Book {
 public:
  // What `place` does next has all of these as its operands.
  void access(Place place, const std::vector<const void*>& reads,
              const std::vector<const void*>& writes) {
    const std::lock_guard lock(mutex_);
    Clock& now = clocks_[place];
    join(now, clocks_[kHost]);
    const std::uint64_t tick = ++now[place];
    for (const void* data : reads) {
      Block& block = blocks_[data];
      check(now, block.writer, place, "reads what another wrote");
      block.readers[place] = tick;
    }
    for (const void* data : writes) {
      Block& block = blocks_[data];
      check(now, block.writer, place, "writes over what another wrote");
      for (const auto& reader : block.readers)
        check(now, reader, place, "writes what another reads");
      block.writer = {place, tick};
      block.readers.clear();
      block.users[place] = tick;
    }
    for (const void* data : reads)
      blocks_[data].users[place] = tick;
  }
  void wait(Place waiting, Place for_whom) {
    const std::lock_guard lock(mutex_);
    join(clocks_[waiting], Clock(clocks_[for_whom]));
  }
  void waitFor(Place waiting, const Clock& event) {
    const std::lock_guard lock(mutex_);
    join(clocks_[waiting], event);
  }
  Clock at(Place place) {
    const std::lock_guard lock(mutex_);
    Clock now = clocks_[place];
    join(now, clocks_[kHost]);
    return now;
  }
  void allocated(const void* data, Place place) {
    const std::lock_guard lock(mutex_);
    blocks_[data] = {};
    blocks_[data].home = place;
  }
  void told(const void* data, Place place) {
    const std::lock_guard lock(mutex_);
    blocks_[data].told.insert(place);
  }
  void freed(const void* data) {
    const std::lock_guard lock(mutex_);
    Block& block = blocks_[data];
    for (const auto& use : block.users) {
      // Its home stream's next user comes after all that this stream has waited for.
      if (use.first == block.home || block.told.count(use.first) != 0) continue;
      check(clocks_[block.home], use, block.home, "gets memory that is in use");
    }
    blocks_.erase(data);
  }
  void copied(bool computing) {
    const std::lock_guard lock(mutex_);
    ++report_.copies;
    report_.copies_on_computing += computing ? 1 : 0;
  }
  void deviceWait() {
    const std::lock_guard lock(mutex_);
    ++report_.device_waits;
  }
  Report take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(report_, {});
  }

 private:
  struct Block {
    std::pair<Place, std::uint64_t> writer{kHost, 0};
    std::map<Place, std::uint64_t> readers;  // since then
    std::map<Place, std::uint64_t> users;    // at any time
    Place home = kHost;                      // where it was taken
    std::set<Place> told;                    // further streams that its allocator knows of
  };
  void check(Clock& now, const std::pair<Place, std::uint64_t>& other, Place place,
             const char* what) {
    if (now[other.first] < other.second) {
      report_.races.push_back(nameOf(place) + " " + what + ": " + nameOf(other.first));
    }
  }

  std::mutex mutex_;
  std::map<Place, Clock> clocks_;
  std::map<const void*, Block> blocks_;
  Report report_;
};

Book& book() {
  static auto* const one = new Book;
  return *one;
}

thread_local int t_device = 0;
thread_local std::array<std::int64_t, kDevices> t_stream{};
thread_local bool t_in_operation = false;

Place here(int index) { return {index, t_stream[static_cast<std::size_t>(index)]}; }
Place placeOf(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }
const void* blockOf(const at::Tensor& tensor) { return tensor.storage().data(); }
bool isOurs(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device to) const override {
    return {kType, static_cast<c10::DeviceIndex>(std::exchange(t_device, to.index()))};
  }
  c10::Device getDevice() const override {
    return {kType, static_cast<c10::DeviceIndex>(t_device)};
  }
  void setDevice(c10::Device to) const override { t_device = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { t_device = to.index(); }
  c10::Stream getStream(c10::Device of) const override {
    const int index = of.has_index() ? of.index() : t_device;
    return c10::Stream(c10::Stream::UNSAFE, {kType, static_cast<c10::DeviceIndex>(index)},
                       here(index).second);
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return c10::Stream(c10::Stream::DEFAULT, of);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool /*high*/) const override {
    static std::atomic<std::int64_t> last{0};
    return c10::Stream(c10::Stream::UNSAFE, of, ++last);
  }
  c10::Stream getNewStream(c10::Device of, int /*priority*/) const override {
    return getStreamFromGlobalPool(of, false);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = getStream(to.device());
    t_stream[static_cast<std::size_t>(to.device_index())] = to.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Clock;
    *static_cast<Clock*>(*event) = book().at(placeOf(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    book().waitFor(placeOf(stream), *static_cast<Clock*>(event));
  }
  void synchronizeEvent(void* event) const override {
    book().waitFor(kHost, *static_cast<Clock*>(event));
  }
  bool queryEvent(void* /*event*/) const override { return true; }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Clock*>(event);
  }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    book().deviceWait();
    book().wait(kHost, placeOf(stream));
  }
  void synchronizeDevice(c10::DeviceIndex /*index*/) const override { book().deviceWait(); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    book().told(data.get(), placeOf(stream));
  }
};

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t size) override {
    // Never one place twice, and never none: the book goes by addresses.
    void* const data = std::malloc(size + 1);
    book().allocated(data, here(t_device));
    return {data, data, &Memory::release, {kType, static_cast<c10::DeviceIndex>(t_device)}};
  }
  static void release(void* data) {
    book().freed(data);
    std::free(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Memory::release; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }
};
Memory& memory() {
  static auto* const one = new Memory;
  return *one;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  bool isPinnedPtr(const void* /*data*/) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static const std::array<at::Generator, kDevices> generators{
        at::make_generator<at::CPUGeneratorImpl>(1), at::make_generator<at::CPUGeneratorImpl>(2)};
    return generators[static_cast<std::size_t>(index < 0 ? t_device : index)];
  }
};

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor emptyMemoryFormat(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> /*layout*/, std::optional<at::Device> where,
                             std::optional<bool> /*pin*/, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(where);
  return at::detail::empty_generic(size, &memory(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor emptyStrided(at::IntArrayRef size, at::IntArrayRef stride,
                        std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                        std::optional<at::Device> where, std::optional<bool> /*pin*/) {
  const c10::OptionalDeviceGuard guard(where);
  return at::detail::empty_strided_generic(size, stride, &memory(), kKeys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor onHost(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

// As CUDA's: between two devices both streams take part.
void bookCopy(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool leaves = isOurs(from);
  const bool arrives = isOurs(to);
  const Place place = here(leaves ? from.device().index() : to.device().index());
  const Place other = here(arrives ? to.device().index() : place.first);
  const bool crosses = !leaves || !arrives || from.device() != to.device();
  if (crosses) book().copied(place.second == 0 || other.second == 0);
  book().wait(place, other);
  book().access(place, leaves ? std::vector{blockOf(from)} : std::vector<const void*>{},
                {blockOf(to)});
  book().wait(other, place);
  if (crosses && !arrives && !non_blocking) book().wait(kHost, place);
  if (arrives && other != place) book().access(other, {blockOf(to)}, {});
}

at::Tensor copyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (!t_in_operation) bookCopy(from, to, non_blocking);
  const at::AutoDispatchBelowADInplaceOrView below;
  onHost(to).copy_(onHost(from));
  return to;
}
at::Tensor copyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  return copyFrom(from, to, false);
}

// Any other operation: computed on the CPU with copies, entered as one access of the current
// stream.
void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  std::vector<const void*> reads;
  std::vector<const void*> writes;
  int index = t_device;
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  for (std::size_t k = 0; k < arguments.size(); ++k) {
    const bool written = schema.arguments()[k].alias_info() != nullptr &&
                         schema.arguments()[k].alias_info()->isWrite();
    const auto add = [&](const at::Tensor& tensor) {
      if (!isOurs(tensor)) return;
      (written ? writes : reads).push_back(blockOf(tensor));
      index = tensor.device().index();
    };
    if (arguments[k].isTensor()) add(arguments[k].toTensor());
    if (arguments[k].isTensorList()) {
      for (const at::Tensor& tensor : arguments[k].toTensorVector())
        add(tensor);
    }
  }
  const c10::DeviceGuard guard(device(index));
  const bool before = std::exchange(t_in_operation, true);
  at::native::cpu_fallback(op, stack);
  t_in_operation = before;
  for (const c10::IValue& result : torch::jit::last(*stack, schema.returns().size())) {
    if (!result.isTensor() || !isOurs(result.toTensor())) continue;
    const void* const block = blockOf(result.toTensor());
    if (std::find(writes.begin(), writes.end(), block) == writes.end()) writes.push_back(block);
  }
  book().access(here(index), reads, writes);
}

at::Tensor viewOf(const at::Tensor& tensor, at::IntArrayRef size) {
  return at::native::view(tensor, size);
}
at::Tensor stridedOf(const at::Tensor& tensor, at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &emptyMemoryFormat);
  library.impl("empty_strided", &emptyStrided);
  library.impl("_copy_from", &copyFrom);
  library.impl("_copy_from_and_resize", &copyFromAndResize);
  library.impl("view", &viewOf);
  library.impl("as_strided", &stridedOf);
}

}  // namespace

void install() {
  static const bool once = [] {
    c10::register_privateuse1_backend("fake");
    static const c10::impl::DeviceGuardImplRegistrar guard(kType, new Guard);
    c10::SetAllocator(kType, &memory());
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
  }();
  (void)once;
}

at::Device device(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

Report report() { return book().take(); }

void hostReads(const at::Tensor& tensor) { book().access(kHost, {blockOf(tensor)}, {}); }

}  // namespace weft::pipe::fake
