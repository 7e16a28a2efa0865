// The collectives on a named process group, begun: what the blocking operators and the asynchronous
// ones have in common.
//
// Any thread; ranks begin them in the same order. A started operation holds its tensors until it is
// over. Failure: c10::Error for bad arguments, before anything is sent; the backend's own (a lost
// rank, the group's timeout) by work->wait() and the future.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/string_view.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <vector>

namespace weft::ops {

struct PendingCollective {
  c10::intrusive_ptr<c10d::Work> work;  // null: it is over
  at::Tensor result = {};               // filled when the work is over; undefined: there is none
  std::vector<at::Tensor> inputs = {};  // kept as long
  bool zero_result = false;  // what the backend leaves in `result` is its own affair: zeros instead

  // Waits, at most the group's timeout.
  at::Tensor finish() &&;
  // The result, or None, when it is there. Not of one that is over.
  c10::intrusive_ptr<c10::ivalue::Future> future() &&;
};

// The process group of that name. Throws c10::Error that says where names come from.
c10::intrusive_ptr<c10d::ProcessGroup> groupOf(c10::string_view name);

// `x` is never changed; results are new tensors. One that is not `is_async` may be over when it
// comes back: collectives run on the calling thread then, and only messages are ever under way.
PendingCollective startSend(bool is_async, const at::Tensor& x, std::int64_t to,
                            c10::string_view group, std::int64_t tag);
PendingCollective startRecv(bool is_async, const at::Tensor& like, std::int64_t from,
                            c10::string_view group, std::int64_t tag);
PendingCollective startAllReduce(bool is_async, const at::Tensor& x, c10::string_view op,
                                 c10::string_view group);
PendingCollective startBroadcast(bool is_async, const at::Tensor& x, std::int64_t from,
                                 c10::string_view group);
PendingCollective startReduce(bool is_async, const at::Tensor& x, std::int64_t to,
                              c10::string_view op, c10::string_view group);
PendingCollective startGather(bool is_async, const at::Tensor& x, std::int64_t to,
                              c10::string_view group);
PendingCollective startScatter(bool is_async, const at::Tensor& x, std::int64_t from,
                               c10::string_view group);
PendingCollective startBarrier(bool is_async, c10::string_view group);

// What gather gives this rank: all rows at `to`, none elsewhere.
std::vector<c10::SymInt> gatheredSizes(const at::Tensor& x, const c10d::ProcessGroup& group,
                                       std::int64_t to);

}  // namespace weft::ops
