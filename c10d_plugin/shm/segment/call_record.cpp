#include "c10d_plugin/shm/segment/call_record.h"

namespace weft::collectives::shm {
namespace {

// The own part may differ in size between ranks.
bool hasUnevenParts(Operation operation) {
  return operation == Operation::kAllGather || operation == Operation::kGather ||
         operation == Operation::kScatter || operation == Operation::kReduceScatter ||
         operation == Operation::kAllToAll;
}

}  // namespace

std::string describe(const CallRecord& record) {
  std::string text = std::string(toString(record.operation)) + " (operation " +
                     std::to_string(record.sequence) + ")";
  if (record.operation == Operation::kBarrier || record.operation == Operation::kRefused) {
    return text;
  }
  if (record.operation != Operation::kAllToAll) {
    text += " of " + std::to_string(record.bytes) + " bytes";
  }
  text += " of " + std::string(collectives::toString(record.element));
  if (reduces(record.operation))
    text += ", " + std::string(collectives::toString(record.reduction));
  if (hasRoot(record.operation)) text += ", root " + std::to_string(record.root);
  return text;
}

bool sameCall(const CallRecord& a, const CallRecord& b) noexcept {
  if (a.operation != b.operation || a.sequence != b.sequence) return false;
  if (a.operation == Operation::kRefused) return false;
  if (a.operation == Operation::kBarrier) return true;
  if (a.element != b.element || a.shapes != b.shapes) return false;
  if (reduces(a.operation) && a.reduction != b.reduction) return false;
  if (hasRoot(a.operation) && a.root != b.root) return false;
  return hasUnevenParts(a.operation) || a.bytes == b.bytes;
}

}  // namespace weft::collectives::shm
