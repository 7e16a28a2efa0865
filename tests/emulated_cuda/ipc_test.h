// The other processes of ipc_test.cpp, which are this program once more.
#pragma once

#include <optional>

namespace emulated::testing {

// The exit status of such a process; nothing in the one that runs the tests.
std::optional<int> runAsOther(char** arguments);

}  // namespace emulated::testing
