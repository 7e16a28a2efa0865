// A process group of torch's without Python: Weft's backend under a name, for
// `c10d::ProcessGroup`'s own members and for the operators that name a group (torch.ops.weft.*,
// torch.ops._c10d_functional.*; in TorchScript, too). Ranks in Python that called
// init_process_group("weft") with the same store are members like those in C++.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "transport/base/api.h"

namespace weft {

struct ProcessGroupOptions {
  std::string name = "0";  // what Python calls its default group
  int rank = -1;           // -1: from RANK
  int size = -1;           // -1: from WORLD_SIZE
  // As JoinOptions::init_method; or `store`, the same one as the others'. One TCP store serves an
  // RPC group and process groups.
  std::string init_method = "env://";
  c10::intrusive_ptr<c10d::Store> store = {};
  std::chrono::milliseconds timeout =
      std::chrono::minutes(30);  // of meeting, and of each operation
  std::string interface = {};    // "": WEFT_SOCKET_IFNAME, else the one that reaches the others
};

// Meets the other ranks; the group lives until it is left, also when nobody keeps the result. Any
// thread; waits at most `timeout`. Throws c10::Error (a bad option, a name in use) or
// c10::DistBackendError (who is missing); then nothing is left running.
WEFT_API c10::intrusive_ptr<c10d::ProcessGroup> joinProcessGroup(ProcessGroupOptions options = {});

// Forgets the name and ends the backend. Waits up to 10 s for operations that other threads run,
// then fails them; does not wait for the other ranks: a barrier before it does. Throws c10::Error
// for a name that is not there.
WEFT_API void leaveProcessGroup(const std::string& name = "0");

}  // namespace weft
