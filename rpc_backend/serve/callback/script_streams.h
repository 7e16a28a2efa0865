// The order of streams behind a scripted call's result.
//
// TorchScript's interpreter and the services make futures without devices. Such a future records no
// events, so whoever gets its value on other streams reads tensors that may not be computed yet.
//
// Threads: any. Failure: an error of the given future is the result's; so is a value on a device of
// which there is no stream.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>

#include <vector>

#include "rpc_backend/core/torch_names.h"
#include "transport/base/api.h"

namespace weft::rpc {

// A future of the same value that waits for `streams`, the streams of the call that made it, and
// for those of the thread that completes it. `made` itself where it has devices, or there are no
// streams.
WEFT_API FuturePtr onStreams(const FuturePtr& made, const std::vector<c10::Stream>& streams);

// The default streams of the devices of `streams`, which wait for these; memory of the arguments is
// kept for them. A function that gives a future runs on them: threads of torch.jit.fork, and those
// in which an interpreter goes on, have no others, so what they compute follows the function's
// work.
WEFT_API std::vector<c10::Stream> defaultStreamsAfter(const std::vector<c10::Stream>& streams,
                                                      const std::vector<c10::IValue>& arguments);

// As onStreams(), of the future that is the value of `made`, whose call ran on the default streams.
WEFT_API FuturePtr innerOnStreams(const FuturePtr& made, const std::vector<c10::Stream>& streams);

}  // namespace weft::rpc
