// Random numbers: repeated exactly when a stage is recomputed, and drawn in the schedule's order.
//
// All CPU stages draw from the one default generator. Stages that draw therefore take turns
// in the order of the schedule, and those that don't need not: which is which is learnt by looking
// whether the generator moved. Accelerators have a generator each, and a lane each.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <optional>

namespace weft::pipe {

// The generators' states before a stage run. Taken before every one, so it is 2.5 KB to be copied
// and nothing to be allocated; what is kept belongs on the heap.
class RngState {
 public:
  // Of the CPU, and of `device` where that is an accelerator.
  static RngState now(c10::Device device);
  // True when the CPU's generator has moved since.
  bool cpuMoved() const;
  void restore() const;

 private:
  struct Cpu {
    bool operator==(const Cpu& other) const;
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  static Cpu cpuNow();
  explicit RngState(c10::Device device) : device_(device), cpu_(cpuNow()) {}

  c10::Device device_;
  Cpu cpu_;
  at::Tensor accelerator_;
};

// Runs with an earlier state; afterwards the generators are as they were.
class RngReplay {
 public:
  RngReplay(const RngState& then, c10::Device device) : before_(RngState::now(device)) {
    then.restore();
  }
  ~RngReplay() { before_.restore(); }
  RngReplay(const RngReplay&) = delete;
  RngReplay& operator=(const RngReplay&) = delete;

 private:
  const RngState before_;
};

// What a stage was seen to do with the CPU's generator, in training or in evaluation.
//
//   kUnknown --ran alone, did not draw--> kQuiet
//   kUnknown --drew---------------------> kDraws
//   kQuiet   --drew---------------------> kDraws
enum class RngHabit : unsigned char { kUnknown, kQuiet, kDraws };

inline bool mayDraw(RngHabit habit) { return habit != RngHabit::kQuiet; }

}  // namespace weft::pipe
