// The entry point of libweft_gloo.so. Only that library has Gloo, because libtorch_cpu exports
// another version of the same names. C linkage, found by dlsym.
#pragma once

#include <memory>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"
#include "transport/base/interruption.h"

namespace weft::collectives {

inline constexpr const char* kGlooLibrary = "libweft_gloo.so";
// The number changes with every type that the function takes or returns: another build's library
// has no function of this name.
inline constexpr const char* kGlooEntry = "weft_gloo_make_4";

extern "C" {
// As MessageCollectives' constructor; null when Gloo refuses to make a context. `hook`: this
// process's, for the waits of that library.
using MakeGlooCollectives = Collectives*(const std::shared_ptr<Mailbox>* mailbox,
                                         const std::vector<int>* members, unsigned channel,
                                         const transport::InterruptHook* hook);
}

}  // namespace weft::collectives
