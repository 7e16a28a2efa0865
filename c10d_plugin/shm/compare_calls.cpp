#include "c10d_plugin/shm/compare_calls.h"

#include <string>
#include <vector>

namespace weft::collectives::shm {
namespace {

std::string rankText(std::size_t rank) { return "rank " + std::to_string(rank); }

bool sameCall(const CallRecord& a, const CallRecord& b) {
  return a.op.agreesWith(b.op) && a.sizes_digest == b.sizes_digest;
}

// A digest cannot tell which sizes differ, or where each pair of ranks has its own: the tables do.
// The operation and its root come from this rank's own call: what others wrote is no index.
class SizeTables {
 public:
  SizeTables(const Segment& segment, const std::vector<CallRecord>& records,
             const OpFingerprint& own, unsigned parity)
      : segment_(segment), records_(records), own_(own), parity_(parity) {}

  // "rank 1 has 4 bytes for rank 2, which expects 12"; empty: all sizes agree.
  std::string difference() const {
    switch (own_.operation) {
      case Operation::kGather:
        return inGather();
      case Operation::kScatter:
        return inScatter();
      case Operation::kAllToAll:
        return inAllToAll();
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
  static std::string disagreement(int from, int to, std::size_t sent, std::size_t expected) {
    if (sent == expected) return {};
    return rankText(static_cast<std::size_t>(from)) + " has " + std::to_string(sent) +
           " bytes for rank " + std::to_string(to) + ", which expects " + std::to_string(expected);
  }

  std::string inGather() const {
    const int root = own_.root;
    std::string text;
    for (int rank = 0; rank < ranks() && text.empty(); ++rank)
      text = disagreement(rank, root, bytesOf(rank), size(root, SizeTable::kExpected, rank));
    return text;
  }
  std::string inScatter() const {
    const int root = own_.root;
    std::string text;
    for (int rank = 0; rank < ranks() && text.empty(); ++rank)
      text = disagreement(root, rank, size(root, SizeTable::kSent, rank), bytesOf(rank));
    return text;
  }
  std::string inAllToAll() const {
    std::string text;
    for (int pair = 0; pair < ranks() * ranks() && text.empty(); ++pair) {
      const int from = pair / ranks();
      const int to = pair % ranks();
      text = disagreement(from, to, size(from, SizeTable::kSent, to),
                          size(to, SizeTable::kExpected, from));
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
               std::to_string(first) + " bytes, rank " + std::to_string(rank) + " says " +
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

// Who refused its own call, or which two calls differ in more than the sizes of their parts.
std::string differenceInCalls(const std::vector<CallRecord>& records) {
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].op.operation != Operation::kRefused) continue;
    return rankText(rank) + " refused its own call (operation " +
           std::to_string(records[rank].op.sequence) + "); its error says why";
  }
  for (std::size_t rank = 1; rank < records.size(); ++rank) {
    if (records[0].op.agreesWith(records[rank].op)) continue;
    return "the ranks called different operations: rank 0 called " + records[0].op.describe() +
           ", " + rankText(rank) + " called " + records[rank].op.describe();
  }
  return {};
}

}  // namespace

Error compareCalls(const Segment& segment, const CallRecord& own, unsigned parity) {
  const int size = segment.layout().ranks;
  const auto recordOf = [&](int rank) -> const CallRecord& {
    return segment.control(rank).records[parity];
  };
  bool all_same = own.op.operation != Operation::kRefused;
  for (int rank = 0; rank < size && all_same; ++rank)
    all_same = sameCall(own, recordOf(rank));
  const Operation operation = own.op.operation;
  const bool sized = operation == Operation::kGather || operation == Operation::kScatter ||
                     operation == Operation::kAllToAll;
  if (all_same && !sized) return Error::ok();

  std::vector<CallRecord> records;
  records.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank)
    records.push_back(recordOf(rank));
  if (const std::string text = differenceInCalls(records); !text.empty())
    return {ErrorCode::kInvalidArgument, text};
  const std::string text = SizeTables(segment, records, own.op, parity).difference();
  if (text.empty()) return Error::ok();
  return {ErrorCode::kInvalidArgument, records[0].op.describe() + ": sizes differ: " + text};
}

}  // namespace weft::collectives::shm
