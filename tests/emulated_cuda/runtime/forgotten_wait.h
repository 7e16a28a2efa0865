// Waits that a test has the runtime leave out, as if the code that asks for them had forgotten
// them.
//
// EMULATED_CUDA_FORGET=LIBRARY:FIRST-LAST[,…] names a function by the file name of its library and
// its places there, pairs of hexadecimal numbers. EMULATED_CUDA_FORGOTTEN names a file that gets a
// byte for each wait that is left out. Any thread.
#pragma once

namespace emulated {

// Whether that function has called the one that calls this, directly or not.
bool isForgotten();

}  // namespace emulated
