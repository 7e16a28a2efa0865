// The operations of ShmCollectives, as core/collectives.h defines them; each in a file of its name,
// all_reduce.cpp with reduce.
//
// Threads and failure: as context.h says.
#pragma once

#include <span>

#include "c10d_plugin/shm/context.h"

namespace weft::collectives::shm {

inline Error barrier(Context& context, const Call& call) {
  if (Error error = context.begin(call, Operation::kBarrier, 0)) return error;
  return context.meet();
}
Error broadcast(Context& context, const Call& call, Bytes data, int root);
Error allReduce(Context& context, const Call& call, Bytes data);
Error reduce(Context& context, const Call& call, Bytes data, int root);
Error allGather(Context& context, const Call& call, ConstBytes in, std::span<const Bytes> out);
Error gather(Context& context, const Call& call, ConstBytes in, std::span<const Bytes> out,
             int root);
Error scatter(Context& context, const Call& call, std::span<const ConstBytes> in, Bytes out,
              int root);
Error reduceScatter(Context& context, const Call& call, std::span<const ConstBytes> in, Bytes out);
Error allToAll(Context& context, const Call& call, std::span<const ConstBytes> in,
               std::span<const Bytes> out);

}  // namespace weft::collectives::shm
