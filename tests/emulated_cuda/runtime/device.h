// The device of the calling thread, and the numbers that devices have on the machine, which
// processes that see different ones share.
#pragma once

namespace emulated {

int currentDevice();
bool isDevice(int device);

int numberOnMachine(int device);
// The current device stands for one that this process does not see.
int deviceOfNumber(int number);

}  // namespace emulated
