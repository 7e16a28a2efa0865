#include "c10d_plugin/cuda/rounds.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

namespace weft::process_group {

namespace {

// What a rank says at a meeting, before its `gives` and `wants`.
enum Said : std::size_t { kWell, kSequence, kType, kElement, kReduction, kRoot, kLongest, kGives };

std::string callAsText(const Words& said) {
  std::ostringstream text;
  text << "call " << said[kSequence] << " is "
       << c10d::opTypeToString(static_cast<c10d::OpType>(said[kType])) << " of up to "
       << said[kLongest] << " elements of " << static_cast<c10::ScalarType>(said[kElement]);
  if (said[kReduction] >= 0) text << ", reduction " << said[kReduction];
  if (said[kRoot] >= 0) text << ", root " << said[kRoot];
  return text.str();
}

Words wordsOf(const DeviceOp& op, std::int64_t sequence) {
  std::int64_t longest = 0;
  for (const std::int64_t size : op.gives)
    longest = std::max(longest, size);
  for (const std::int64_t size : op.wants)
    longest = std::max(longest, size);
  Words words{1,
              sequence,
              static_cast<std::int64_t>(op.type),
              static_cast<std::int64_t>(op.element),
              op.reduction,
              op.root,
              longest};
  words.insert(words.end(), op.gives.begin(), op.gives.end());
  words.insert(words.end(), op.wants.begin(), op.wants.end());
  return words;
}

// Every rank looks at what all say, so that all throw alike.
void checkSizes(const char* title, const std::vector<Words>& all) {
  const std::size_t size = all.size();
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      const auto given = all[from][kGives + to];
      const auto wanted = all[to][kGives + size + from];
      TORCH_CHECK(wanted == kAnySize || wanted == given, title, ": rank ", from, " has ", given,
                  " elements for rank ", to, ", which expects ", wanted);
    }
  }
}

// Returns the most elements that any two ranks exchange.
std::int64_t checkCalls(const char* title, const std::vector<Words>& all) {
  std::int64_t longest = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Words& said = all[rank];
    TORCH_CHECK(std::equal(said.begin() + kSequence, said.begin() + kLongest,
                           all.front().begin() + kSequence),
                title, ": the ranks called different operations: on rank 0 ",
                callAsText(all.front()), "; on rank ", rank, " ", callAsText(said));
    longest = std::max(longest, said[kLongest]);
  }
  checkSizes(title, all);
  return longest;
}

}  // namespace

at::Tensor Piece::of(const at::Tensor& tensor) const {
  const auto from = std::min(begin, tensor.numel());
  return tensor.narrow(0, from, std::min(size, tensor.numel() - from));
}

std::vector<Words> Rounds::round(const DeviceOp& op, const Piece& piece, Words words,
                                 const Step& step, const c10::cuda::CUDAStream& stream) {
  const int own = meeting_.rank();
  const auto half = [&](int rank, int share, std::int64_t size) {
    return staging_.half(rank, op.element).narrow(0, share * piece.size, size);
  };
  if (!problem_ && op.put) {
    try {
      op.put(piece, [&](int, int share, std::int64_t size) { return half(own, share, size); });
    } catch (...) {
      problem_ = std::current_exception();
    }
  }
  staging_.filled(stream);
  words[kWell] = problem_ ? 0 : 1;
  auto all = meeting_.gather(words, step);
  staging_.beginReading(stream);
  try {
    for (std::size_t rank = 0; rank < all.size() && !problem_; ++rank)
      TORCH_CHECK(all[rank][kWell] == 1, op.title, ": rank ", rank,
                  " could not do its part; its own error says why");
    if (pieces_ < 0 && !problem_) {
      const auto longest = checkCalls(op.title, all);
      pieces_ = std::max<std::int64_t>(1, (longest + piece.size - 1) / piece.size);
    }
    if (!problem_ && op.take) op.take(piece, half);
  } catch (...) {
    problem_ = std::current_exception();
  }
  staging_.endReading();
  return all;
}

void Rounds::runRounds(const DeviceOp& op, const Step& step, const c10::cuda::CUDAStream& stream) {
  constexpr std::int64_t kAlignment = 16;  // elements: pieces begin where vector loads may
  const auto room = static_cast<std::int64_t>(staging_.bytes() / c10::elementSize(op.element));
  const std::int64_t size = room / op.shares / kAlignment * kAlignment;
  const Words words = wordsOf(op, operations_++);
  problem_ = nullptr;
  pieces_ = -1;
  for (std::int64_t at = 0; at == 0 || at < pieces_ * op.phases; ++at) {
    const Piece piece{at / op.phases * size, size, static_cast<int>(at % op.phases)};
    const auto all = round(op, piece, words, step, stream);
    const bool ends =
        std::any_of(all.begin(), all.end(), [](const Words& said) { return said[kWell] != 1; });
    if (ends || pieces_ < 0) break;
  }
}

void Rounds::run(const DeviceOp& op, const Step& step, const c10::cuda::CUDAStream& stream) {
  try {
    runRounds(op, step, stream);
  } catch (...) {
    meeting_.breakOff(op.title);
    throw;
  }
  if (problem_) std::rethrow_exception(std::exchange(problem_, nullptr));
}

}  // namespace weft::process_group
