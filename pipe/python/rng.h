// Methods of Python's torch.Generator that use its state, brought to the notice of rng.h.
#pragma once

namespace weft::pipe {

// Puts functions of Weft's before get_state, set_state, manual_seed and the like. Done once, with
// the GIL, when weft._C is imported.
void watchGeneratorMethods();

}  // namespace weft::pipe
