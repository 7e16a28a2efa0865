#include "pipe/rng.h"

#include <ATen/Context.h>

#include <cstring>
#include <mutex>

namespace weft::pipe {

namespace {

const at::Generator& cpuGenerator() { return at::detail::getDefaultCPUGenerator(); }

at::CPUGeneratorImpl* cpuImpl() {
  return static_cast<at::CPUGeneratorImpl*>(cpuGenerator().unsafeGetGeneratorImpl());
}

bool hasGenerator(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

void locked(at::Generator generator, const auto& action) {
  const std::lock_guard lock(generator.mutex());
  action(generator);
}

}  // namespace

bool RngState::Cpu::operator==(const Cpu& other) const {
  const at::mt19937_data_pod mine = engine.data();
  const at::mt19937_data_pod theirs = other.engine.data();
  return mine.seed_ == theirs.seed_ && mine.left_ == theirs.left_ && mine.next_ == theirs.next_ &&
         mine.state_ == theirs.state_ && next_float == other.next_float &&
         next_double == other.next_double;
}

RngState::Cpu RngState::cpuNow() {
  at::CPUGeneratorImpl& generator = *cpuImpl();
  const std::lock_guard lock(generator.mutex_);
  return {generator.engine(), generator.next_float_normal_sample(),
          generator.next_double_normal_sample()};
}

RngState RngState::now(c10::Device device) {
  RngState state(device);
  if (hasGenerator(device)) {
    locked(at::globalContext().defaultGenerator(device),
           [&](at::Generator& generator) { state.accelerator_ = generator.get_state(); });
  }
  return state;
}

bool RngState::cpuMoved() const { return !(cpuNow() == cpu_); }

void RngState::restore() const {
  locked(cpuGenerator(), [&](at::Generator&) {
    cpuImpl()->set_engine(cpu_.engine);
    cpuImpl()->set_next_float_normal_sample(cpu_.next_float);
    cpuImpl()->set_next_double_normal_sample(cpu_.next_double);
  });
  if (accelerator_.defined()) {
    locked(at::globalContext().defaultGenerator(device_),
           [&](at::Generator& generator) { generator.set_state(accelerator_); });
  }
}

}  // namespace weft::pipe
