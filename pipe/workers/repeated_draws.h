// Lets a stage that runs again draw the same random numbers, from torch's default generators and
// from those that a layer has.
//
// Threads: one at a time; begin() and end() on the same one.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "pipe/stage/rng.h"
#include "transport/base/api.h"

namespace weft::pipe {

class WEFT_API RepeatedDraws {
 public:
  // `device`: the stage's; the default generator of an accelerator counts as drawn from.
  explicit RepeatedDraws(c10::Device device);
  ~RepeatedDraws();
  RepeatedDraws(const RepeatedDraws&) = delete;
  RepeatedDraws& operator=(const RepeatedDraws&) = delete;
  // The stage begins to run, on this thread: the first time, or again.
  void begin();
  void end();

 private:
  const c10::Device device_;
  std::optional<RngStates> then_;  // of the first run, after it
  std::optional<RngScope> now_;
};

}  // namespace weft::pipe
