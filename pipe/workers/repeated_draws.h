// Lets a stage that runs again draw the same random numbers, from torch's default generators and
// from those that a layer has.
//
// Nothing keeps others from the generators meanwhile: another pipeline of this process, another
// thread. What they draw is noticed at the end of the run that is repeated.
//
// Threads: one at a time; begin() and the end of the run on the same one. A stage that asks for
// gradients of its own runs again within its first run.
// Failure: end() throws where the numbers were others; the run is over then too.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <optional>

#include "pipe/stage/rng.h"
#include "transport/base/api.h"

namespace weft::pipe {

class WEFT_API RepeatedDraws {
 public:
  // `device`: the stage's; the default generator of an accelerator counts as drawn from. `stage`:
  // its number, for errors.
  RepeatedDraws(c10::Device device, std::size_t stage);
  ~RepeatedDraws();
  RepeatedDraws(const RepeatedDraws&) = delete;
  RepeatedDraws& operator=(const RepeatedDraws&) = delete;
  // The stage begins to run, on this thread: the first time, or again.
  void begin();
  // The run has come to its end.
  void end();
  // An exception has ended the run.
  void leave();

 private:
  const c10::Device device_;
  const std::size_t stage_;
  std::optional<RngStates> then_;  // of the first run, after it
  std::optional<RngScope> now_;
  std::optional<RngScope> within_;  // again, while the first run lasts
};

}  // namespace weft::pipe
