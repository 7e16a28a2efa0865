// Opens libweft_gloo.so, which is beside the shared object that this code is in, and makes
// collectives with Gloo's algorithms. No process that never needs them opens it.
//
// Thread-safe. Failure (no libgloo.so.0 on this machine, another build's library): an Error that
// says what the loader said; the caller then uses MessageCollectives, on all ranks alike.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

// Whether this process could; cheap after the first time.
Error glooAvailable();

// As MessageCollectives' constructor.
Result<std::unique_ptr<Collectives>> makeGlooCollectives(const std::shared_ptr<Mailbox>& mailbox,
                                                         const std::vector<int>& members,
                                                         unsigned channel);

// Tests: another place than beside this code. Before the first use.
void setGlooLibrary(const std::string& path);

}  // namespace weft::collectives
