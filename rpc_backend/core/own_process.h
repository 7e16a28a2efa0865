// OwnProcess: whether this is still the process that joined the RPC group. A forked child has a
// copy of its agent, and no part in the group: not its threads, nor its locks, nor its connections.
//
// Threads: any; no lock is taken. Failure: check() throws c10::Error.
#pragma once

#include "transport/base/fork_guard.h"

namespace weft::rpc {

class OwnProcess {
 public:
  bool holds() const noexcept { return guard_.inOwnProcess(); }
  // Throws in a child. `what`: the operation, for the text.
  void check(const char* what) const {
    if (!holds()) refuse(what);
  }

  // For waits, which know no agent: this process joins now; a child throws from then on.
  static void join() noexcept;
  static void checkLatest(const char* what);

 private:
  [[noreturn]] static void refuse(const char* what);

  transport::ForkGuard guard_;
};

}  // namespace weft::rpc
