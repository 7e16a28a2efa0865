// What a stage at a worker says of a layer or a loss that it cannot take; also Python's stages
// (weft/pipe/_workers/stage.py).
#pragma once

namespace weft::pipe::stage_errors {

inline constexpr const char* kChangesItsInput =
    "the stage changes its input in place, and a recomputation needs the input as it was: use "
    "checkpoint=\"never\", or let the stage's first operation make a new tensor";
inline constexpr const char* kChangesOneOfSeveral =
    "the stage changes one of its inputs in place, and others had the same memory in the stage "
    "before, which is on another worker: they do not change here. Give clones, or change a clone";
inline constexpr const char* kInputHasChanged =
    "an input of the stage was changed in place after its forward, and the recomputation for the "
    "backward needs it as it was: change a clone, or use checkpoint=\"never\"";
inline constexpr const char* kLeavesGradientsOff =
    "a layer of the stage, or the loss, switches gradients off with torch.set_grad_enabled(False) "
    "and leaves them off: use `with torch.no_grad():`, which ends";
inline constexpr const char* kHasNoGraph =
    "the loss of a micro-batch does not require a gradient, so that a step trains nothing: the "
    "loss is detached or an integer, or all parameters are frozen. For a loss without training, "
    "compute it of the output of pipe(inputs)";
// What torch says of it, and what is added to that; a parameter may be meant as well.
inline constexpr const char* kALeaf = "leaf Variable that requires grad";
inline constexpr const char* kLeafIsInput =
    "If that is the stage's input: let the stage's first operation make a new tensor "
    "(inplace=False).";

}  // namespace weft::pipe::stage_errors
