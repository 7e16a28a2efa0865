// Waits in which the calling thread drives the endpoint, so that it reads what it waits for itself.
//
// Threads: any, without the GIL and with no lock held.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "rpc_backend/core/torch_names.h"
#include "transport/base/deadline.h"
#include "transport/base/interruption.h"
#include "transport/base/spin.h"
#include "transport/endpoint.h"

namespace weft::rpc {

// Drives until `done()`. kInterrupted: a person's Ctrl-C came first. Nothing: this thread cannot
// drive, because another caller does or the endpoint closes. Another thread that makes `done()`
// true calls wakeDriver() afterwards.
std::optional<transport::Waited> driveUntil(transport::Endpoint& endpoint,
                                            transport::Deadline deadline,
                                            const std::function<bool()>& done,
                                            transport::AdaptiveSpin& spin);
// The same, once, but no signal's handler runs meanwhile.
transport::Driven driveOnce(transport::Endpoint& endpoint, transport::Deadline deadline,
                            const std::function<bool()>& done, transport::AdaptiveSpin& spin);
// As driveUntil(), until the future is complete. Returns early if this thread can't drive (its
// state is not plain, another caller drives, or the endpoint closes); then wait in another way.
// Throws what Ctrl-C's handler raised.
void driveUntilCompleted(const std::shared_ptr<transport::Endpoint>& endpoint, JitFuture& future);

}  // namespace weft::rpc
