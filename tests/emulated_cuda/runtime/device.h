// The device of the calling thread.
#pragma once

namespace emulated {

int currentDevice();
bool isDevice(int device);

}  // namespace emulated
