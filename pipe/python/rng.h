// Tells pipe/stage/rng.h when a method of Python's torch.Generator uses the generator's state.
#pragma once

namespace weft::pipe {

// Wraps get_state, set_state, manual_seed and the like. Once, with the GIL, when weft._C is
// imported.
void watchGeneratorMethods();

}  // namespace weft::pipe
