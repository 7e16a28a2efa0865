// Compares what the ranks called, side by side. Every rank reads the same records and compares them
// in the same way, so all come to the same verdict and the same text.
#pragma once

#include "c10d_plugin/shm/segment/segment.h"

namespace weft::collectives::shm {

// Between the first meeting of an operation and the second. kInvalidArgument names two ranks that
// differ, and how. `own`: this rank's record; `parity`: of the step in which the operation began.
Error compareCalls(const Segment& segment, const CallRecord& own, unsigned parity);

}  // namespace weft::collectives::shm
