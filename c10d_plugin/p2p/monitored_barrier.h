// A barrier that says who did not come. Rank 0 waits for every rank and releases them.
//
// Threads: any, which wait. Failure: throws c10::Error with the texts of torch's monitored_barrier,
// because programs search for them.
#pragma once

#include <chrono>
#include <cstdint>

#include "c10d_plugin/core/mailbox.h"

namespace weft::process_group {

// `count`: how many the ranks have begun before. `wait_all_ranks`: the error names all that are
// missing, not the first.
void meetAll(collectives::Mailbox& mailbox, std::uint64_t count, std::chrono::milliseconds timeout,
             bool wait_all_ranks);

}  // namespace weft::process_group
