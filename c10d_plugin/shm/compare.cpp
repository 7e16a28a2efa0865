// What the ranks asked for, side by side. Every rank reads the same records and compares them in
// the same way, so that all come to the same verdict and the same text.
#include <string>
#include <vector>

#include "c10d_plugin/shm/shm_collectives.h"

namespace weft::collectives {

using shm::CallRecord;
using shm::SizeTable;

namespace {

std::string rankText(std::size_t rank) { return "rank " + std::to_string(rank); }

// Equal in all that its description shows.
bool differsInShapesOnly(CallRecord a, const CallRecord& b) {
  a.shapes = b.shapes;
  return sameCall(a, b);
}

std::string disagreement(int from, int to, std::size_t sent, std::size_t expected) {
  return rankText(static_cast<std::size_t>(from)) + " has " + std::to_string(sent) +
         " bytes for rank " + std::to_string(to) + ", which expects " + std::to_string(expected);
}

}  // namespace

Error ShmCollectives::compare() {
  const auto recordOf = [this](int rank) -> const CallRecord& {
    return segment_->control(rank).records[parity_];
  };
  bool all_same = record_.operation != Operation::kRefused;
  for (int rank = 0; rank < size_ && all_same; ++rank) {
    all_same = sameCall(record_, recordOf(rank));
  }
  const bool sized = record_.operation == Operation::kGather ||
                     record_.operation == Operation::kScatter ||
                     record_.operation == Operation::kAllToAll;
  if (all_same && !sized) return Error::ok();

  std::vector<CallRecord> records;
  records.reserve(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank)
    records.push_back(recordOf(rank));
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].operation == Operation::kRefused) {
      return {ErrorCode::kInvalidArgument,
              rankText(rank) + " called something that was refused there (operation " +
                  std::to_string(records[rank].sequence) + "); its error says what"};
    }
  }
  for (std::size_t rank = 1; rank < records.size(); ++rank) {
    if (sameCall(records[0], records[rank])) continue;
    if (differsInShapesOnly(records[0], records[rank])) break;
    return {ErrorCode::kInvalidArgument, "ranks called different things: rank 0 " +
                                             describe(records[0]) + ", " + rankText(rank) + " " +
                                             describe(records[rank])};
  }
  const std::string difference = differenceInSizes(records);
  if (difference.empty()) return Error::ok();
  return {ErrorCode::kInvalidArgument,
          describe(records[0]) + ": sizes do not agree: " + difference};
}

std::string ShmCollectives::differenceInSizes(std::span<const CallRecord> records) const {
  const Operation operation = record_.operation;
  const auto bytesOf = [&](int rank) {
    return static_cast<std::size_t>(records[static_cast<std::size_t>(rank)].bytes);
  };
  for (int rank = 0; rank < size_; ++rank) {
    const int root = record_.root;
    if (operation == Operation::kGather) {
      const std::size_t expected = told(root, SizeTable::kExpected, rank);
      if (bytesOf(rank) != expected) return disagreement(rank, root, bytesOf(rank), expected);
    } else if (operation == Operation::kScatter) {
      const std::size_t sent = told(root, SizeTable::kSent, rank);
      if (bytesOf(rank) != sent) return disagreement(root, rank, sent, bytesOf(rank));
    } else if (operation == Operation::kAllToAll) {
      for (int to = 0; to < size_; ++to) {
        const std::size_t sent = told(rank, SizeTable::kSent, to);
        const std::size_t expected = told(to, SizeTable::kExpected, rank);
        if (sent != expected) return disagreement(rank, to, sent, expected);
      }
    } else {
      const SizeTable table =
          operation == Operation::kAllGather ? SizeTable::kExpected : SizeTable::kSent;
      for (int part = 0; part < size_; ++part) {
        const std::size_t first = told(0, table, part);
        const std::size_t here = told(rank, table, part);
        if (first == here) continue;
        return "rank 0 says that rank " + std::to_string(part) + "'s part has " +
               std::to_string(first) + " bytes, rank " + std::to_string(rank) + " says " +
               std::to_string(here);
      }
    }
  }
  return {};
}

std::size_t ShmCollectives::told(int rank, SizeTable table, int index) const {
  return static_cast<std::size_t>(segment_->sizes(rank, parity_, table)[index]);
}

}  // namespace weft::collectives
