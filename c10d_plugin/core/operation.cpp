#include "c10d_plugin/core/operation.h"

namespace weft::collectives {

const char* toString(Operation operation) noexcept {
  switch (operation) {
    case Operation::kBarrier:
      return "barrier";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kReduce:
      return "reduce";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kRefused:
      return "a call that was refused";
  }
  return "an unknown operation";
}

bool reduces(Operation operation) noexcept {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

bool hasRoot(Operation operation) noexcept {
  return operation == Operation::kBroadcast || operation == Operation::kReduce ||
         operation == Operation::kGather || operation == Operation::kScatter;
}

}  // namespace weft::collectives
