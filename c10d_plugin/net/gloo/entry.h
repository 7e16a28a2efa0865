// The door of libweft_gloo.so, the only one: Gloo lives behind it and nowhere else, because
// libtorch_cpu exports another version of the same names. C linkage, found by dlsym.
#pragma once

#include <memory>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

// Changes whenever anything that passes through the door does; both sides compare.
inline constexpr int kGlooDoor = 1;
inline constexpr const char* kGlooLibrary = "libweft_gloo.so";

extern "C" {
// kGlooDoor of the library.
using GlooDoorVersion = int();
// As MessageCollectives' constructor; null and `problem` (static text) when it can't.
using MakeGlooCollectives = Collectives*(const std::shared_ptr<Mailbox>* mailbox,
                                         const std::vector<int>* members, unsigned channel,
                                         const char** problem);
}

}  // namespace weft::collectives
