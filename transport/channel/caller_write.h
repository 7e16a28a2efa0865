// How a thread that sends a frame writes it itself, also while its bytes still come
// (Message::filling).
//
// Threads: any; no lock is held.
#pragma once

#include <cstdint>

#include "transport/bulk/bulk_connection.h"
#include "transport/frame/out_frame.h"
#include "transport/io/stream.h"

namespace weft::transport {

// For the stream's one writer. Writes what the stream takes, and returns how many bytes that were.
// The loop thread writes the rest, and meets the error if there is one. `bulk`, if not null,
// carries the other half of the frame and is told of bytes that have come.
std::uint64_t writeNow(OutFrame& frame, Stream& stream, BulkConnection* bulk);

// Waits until all bytes of the frame are there. `bulk`: as above.
void awaitAllBytes(OutFrame& frame, BulkConnection* bulk);

}  // namespace weft::transport
