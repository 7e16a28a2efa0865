// Waits that a test has the runtime leave out, as if the code that asks for them had forgotten
// them: of streams and of the host for events and streams, of host functions for their stream. Who
// asks whether an event is over is told that it is.
//
// EMULATED_CUDA_FORGET=LIBRARY:FIRST-LAST[,…] names a function by the file name of its library and
// its places there, pairs of hexadecimal numbers. EMULATED_CUDA_FORGOTTEN names a file that gets a
// byte for each wait that is left out. Any thread.
#pragma once

namespace emulated {

// Whether that function has called the one that calls this, directly or not.
bool isForgotten();
// Whether it has done so directly: what an allocator below it asks is not forgotten with it.
bool isForgottenByCaller();

}  // namespace emulated
