// The entry points of libweft_gloo.so. Only that library has Gloo, because libtorch_cpu exports
// another version of the same names. C linkage, found by dlsym.
#pragma once

#include <memory>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

// Changes with every type that these functions take or return; the loader compares it.
inline constexpr int kGlooEntryVersion = 1;
inline constexpr const char* kGlooLibrary = "libweft_gloo.so";

extern "C" {
// kGlooEntryVersion of the library.
using GlooEntryVersion = int();
// As MessageCollectives' constructor; null and `problem` (static text) when it can't.
using MakeGlooCollectives = Collectives*(const std::shared_ptr<Mailbox>* mailbox,
                                         const std::vector<int>* members, unsigned channel,
                                         const char** problem);
}

}  // namespace weft::collectives
