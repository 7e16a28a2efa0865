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

RngState RngState::now(c10::Device device) {
  RngState state;
  state.device_ = device;
  locked(cpuGenerator(), [&](at::Generator&) { state.cpu_ = cpuImpl()->clone(); });
  if (hasGenerator(device)) {
    locked(at::globalContext().defaultGenerator(device),
           [&](at::Generator& generator) { state.accelerator_ = generator.get_state(); });
  }
  return state;
}

bool RngState::cpuMoved() const {
  bool moved = false;
  locked(cpuGenerator(), [&](at::Generator&) {
    const at::mt19937_data_pod then = cpu_->engine().data();
    const at::mt19937_data_pod now = cpuImpl()->engine().data();
    moved = then.seed_ != now.seed_ || then.left_ != now.left_ || then.next_ != now.next_ ||
            then.state_ != now.state_ ||
            cpu_->next_float_normal_sample() != cpuImpl()->next_float_normal_sample() ||
            cpu_->next_double_normal_sample() != cpuImpl()->next_double_normal_sample();
  });
  return moved;
}

void RngState::restore() const {
  locked(cpuGenerator(), [&](at::Generator&) {
    cpuImpl()->set_engine(cpu_->engine());
    cpuImpl()->set_next_float_normal_sample(cpu_->next_float_normal_sample());
    cpuImpl()->set_next_double_normal_sample(cpu_->next_double_normal_sample());
  });
  if (accelerator_.defined()) {
    locked(at::globalContext().defaultGenerator(device_),
           [&](at::Generator& generator) { generator.set_state(accelerator_); });
  }
}

}  // namespace weft::pipe
