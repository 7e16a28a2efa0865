// All processes of a group say something through a Store, and all read it.
//
// Threads: one at a time. Every wait is bounded; after 10 s a log line names the missing ranks.
// Failure: kTimeout names the ranks that said nothing; else the Store's error.
#pragma once

#include <string>
#include <vector>

#include "c10d_plugin/store/key_value.h"

namespace weft::collectives {

// Sets `topic`/`rank` to `value` and returns what all of `ranks` said there, in their order.
transport::Result<std::vector<std::string>> storeAllGather(KeyValue& store,
                                                           const std::string& topic,
                                                           const std::string& value, int rank,
                                                           const std::vector<int>& ranks,
                                                           Deadline deadline);

// Each rank says what went wrong there, if anything. "rank 2: <its problem>" of the first that has
// one; empty: all is well everywhere. The same on all ranks.
transport::Result<std::string> firstProblem(KeyValue& store, const std::string& topic,
                                            const transport::Error& own, int rank,
                                            const std::vector<int>& ranks, Deadline deadline);

}  // namespace weft::collectives
