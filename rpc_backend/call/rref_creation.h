// What a failed rpc.remote() leaves behind: torch's RRef marks itself wrongly or not at all, and a
// to_here() that was called before the failure waits for a value that never comes.
//
// Threads: any. FailedCreations calls nothing with its lock held.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/rref/torch_rrefs.h"

namespace weft::rpc {

// Whether a call of that type creates an RRef's value.
bool createsRRef(MessageType type);

// Whether an answer says that `created` has its value; any reference, if what was to be created is
// not known. torch throws for another answer, with the effect below.
bool confirmsCreation(MessageType type, std::span<const char> payload,
                      const std::optional<ForkIds>& created);

// The error of a call of that type. If the creation of an RRef fails otherwise than by a timeout,
// torch's callback throws (2.11, the error handlers of UserRRef): callbacks after it never run, so
// rref._get_future().wait() and rpc.shutdown hang. So every failure of rpc.remote() is given as a
// timeout; to_here() says the reason (weft/_torch/patches/rref.py).
//
// `logged`: the log has the reason already.
std::exception_ptr callError(MessageType type, const std::string& text, bool logged);

// The reference that the call with that future was to create (torch_rrefs::markFailed), marked as
// failed; nothing when torch does not note it. torch does so right after it has sent the call, so
// this waits for as long as that thread has to wait for a core; not when the agent closes.
torch_rrefs::RRefPtr markRRef(const JitFuture& creation, const std::optional<ForkIds>& created,
                              bool closing);

// Marks the reference to this worker's own value that a call with that payload, not yet sent, was
// to create. False: it is not found.
bool markOwnRRef(std::span<const char> payload);

// The values whose creation failed last, for fetches that are sent at that moment: torch saw an
// unmarked RRef, and the failure did not see the fetch.
class FailedCreations {
 public:
  void add(const RRefKey& value, std::string why);
  std::optional<std::string> find(const RRefKey& value) const;

 private:
  static constexpr std::size_t kKept = 64;

  mutable std::mutex mutex_;
  std::deque<std::pair<RRefKey, std::string>> failed_;
};

}  // namespace weft::rpc
