// How a Context compares what the ranks called.
#include <string>
#include <vector>

#include "c10d_plugin/core/op_fingerprint.h"
#include "c10d_plugin/shm/context.h"
#include "transport/base/peer_name.h"

namespace weft::collectives::shm {
namespace {

std::string rankText(std::size_t rank) { return "rank " + std::to_string(rank); }

bool sameCall(const CallRecord& a, const CallRecord& b) {
  return a.op.agreesWith(b.op) && a.sizes == b.sizes;
}

// Finds which sizes differ. A digest cannot say that, nor compare sizes that differ for each pair
// of ranks. The operation and its root come from this rank's own call, because what others wrote
// must not be used as an index.
class SizeTables {
 public:
  SizeTables(const Segment& segment, const std::vector<CallRecord>& records,
             const OpFingerprint& own, unsigned parity)
      : segment_(segment), records_(records), own_(own), parity_(parity) {}

  // "rank 1 has 4 bytes for rank 2, which expects 12"; empty: all sizes agree.
  std::string difference() const {
    switch (own_.operation) {
      case Operation::kGather:
      case Operation::kScatter:
      case Operation::kAllToAll:
        return inPairs();
      case Operation::kAllGather:
        return inEqualTables(SizeTable::kExpected);
      default:
        return inEqualTables(SizeTable::kSent);
    }
  }

 private:
  int ranks() const { return static_cast<int>(records_.size()); }
  std::size_t bytesOf(int rank) const {
    return static_cast<std::size_t>(records_[static_cast<std::size_t>(rank)].op.bytes);
  }
  std::size_t size(int rank, SizeTable table, int index) const {
    return static_cast<std::size_t>(segment_.sizes(rank, parity_, table)[index]);
  }
  // How many bytes `from` has for `to`, and `to` expects from it.
  std::string ofPair(int from, int to) const {
    const bool gather = own_.operation == Operation::kGather;
    const bool scatter = own_.operation == Operation::kScatter;
    const std::size_t sent = gather ? bytesOf(from) : size(from, SizeTable::kSent, to);
    const std::size_t expected = scatter ? bytesOf(to) : size(to, SizeTable::kExpected, from);
    if (sent == expected) return {};
    return rankText(static_cast<std::size_t>(from)) + " has " + transport::bytesText(sent) +
           " for rank " + std::to_string(to) + ", which expects " + std::to_string(expected);
  }
  std::string inPairs() const {
    std::string text;
    for (int from = 0; from < ranks(); ++from) {
      for (int to = 0; to < ranks() && text.empty(); ++to) {
        if (own_.operation == Operation::kGather && to != own_.root_or_sizes) continue;
        if (own_.operation == Operation::kScatter && from != own_.root_or_sizes) continue;
        text = ofPair(from, to);
      }
    }
    return text;
  }
  // Where all ranks must have published the same table.
  std::string inEqualTables(SizeTable table) const {
    for (int rank = 1; rank < ranks(); ++rank) {
      for (int part = 0; part < ranks(); ++part) {
        const std::size_t first = size(0, table, part);
        const std::size_t here = size(rank, table, part);
        if (first == here) continue;
        return "rank 0 says that rank " + std::to_string(part) + "'s part has " +
               transport::bytesText(first) + ", and rank " + std::to_string(rank) + " says " +
               std::to_string(here);
      }
    }
    return {};
  }

  const Segment& segment_;
  const std::vector<CallRecord>& records_;
  const OpFingerprint& own_;
  const unsigned parity_;
};

// Which rank refused its own call, or which two calls differ in more than the sizes of their parts.
std::string differenceInCalls(const std::vector<CallRecord>& records) {
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].op.operation != Operation::kRefused) continue;
    return rankText(rank) + " refused its own call (operation " +
           std::to_string(records[rank].op.sequence) + "); its error says why";
  }
  for (std::size_t rank = 1; rank < records.size(); ++rank) {
    if (records[0].op.agreesWith(records[rank].op)) continue;
    return differentCalls(0, records[0].op.label(), static_cast<int>(rank),
                          records[rank].op.label());
  }
  return {};
}

}  // namespace

Error Context::compareCalls() const {
  const Operation operation = record_.op.operation;
  bool all_same = operation != Operation::kRefused;
  for (int rank = 0; rank < size_ && all_same; ++rank)
    all_same = sameCall(record_, segment_->control(rank).records[parity_]);
  const bool sized = operation == Operation::kGather || operation == Operation::kScatter ||
                     operation == Operation::kAllToAll;
  if (all_same && !sized) return Error::ok();

  std::vector<CallRecord> records;
  records.reserve(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank)
    records.push_back(segment_->control(rank).records[parity_]);
  if (const std::string text = differenceInCalls(records); !text.empty())
    return {ErrorCode::kInvalidArgument, text};
  const std::string text = SizeTables(*segment_, records, record_.op, parity_).difference();
  if (text.empty()) return Error::ok();
  return {ErrorCode::kInvalidArgument, records[0].op.describe() + ": sizes differ: " + text};
}

}  // namespace weft::collectives::shm
