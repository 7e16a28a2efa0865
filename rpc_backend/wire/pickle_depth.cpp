#include "rpc_backend/wire/pickle_depth.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rpc_backend/wire/pickle_reader.h"

namespace weft::rpc {
namespace {

using namespace pickle;  // NOLINT(google-build-using-namespace): opcodes and their reader

// A typed list counts twice, since its type stands beside it in a tuple.
constexpr std::uint32_t kMaxDepth = 512;
constexpr std::uint32_t kMaxBrackets = 128;  // of a type's name, open at once

std::uint32_t bracketsOf(std::string_view text) {
  std::int64_t open = 0;
  std::int64_t most = 0;
  for (const char letter : text) {
    if (letter == '[' || letter == '(') most = std::max(most, ++open);
    if (letter == ']' || letter == ')') --open;
  }
  return static_cast<std::uint32_t>(most);
}

// Runs the pickle on a stack that knows only depths.
class Scan : Reader {
 public:
  using Reader::Reader;

  bool run() {
    if (!starts("\x80\x02")) return false;
    unsigned char op = 0;
    while (right_ && take(op) && op != kStop)
      step(op);
    return right_;
  }

 private:
  // kPlain holds nothing.
  using Value = std::uint32_t;
  static constexpr Value kPlain = 0;
  struct Node {
    std::uint32_t depth = 0;
    std::uint32_t brackets = 0;  // of a text, or of one beside others in a tuple
    bool complete = true;        // it is part of another one, or was fetched
  };

  void step(unsigned char op) {
    std::int64_t number = 0;
    switch (op) {
      case kBinInt:
      case kBinInt1:
      case kBinInt2:
      case kLong1:
        return integer(op, number) ? stack_.push_back(kPlain) : stop();
      case kBinFloat:
        return skip(8) ? stack_.push_back(kPlain) : stop();
      case kNone:
      case kNewTrue:
      case kNewFalse:
        return stack_.push_back(kPlain);
      case kBinUnicode:
        return text();
      case kGlobal:
        return line() && line() ? stack_.push_back(kPlain) : stop();
      case kBinPersonalId:
        return drop(1), stack_.push_back(kPlain);
      case kEmptyTuple:
      case kEmptyList:
      case kEmptyDict:
        return push({1, 0, op == kEmptyTuple});
      case kMark:
        return marks_.push_back(stack_.size());
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return tuple(op - kTuple1 + 1U);
      case kTuple:
        return tuple(toMark());
      case kAppend:
      case kBuild:
        return fill(1);
      case kAppends:
      case kSetItems:
        return fill(toMark());
      case kReduce:
        return call();
      case kNewObject:
        return drop(2), push({1, 0, false});
      case kBinPut:
      case kLongBinPut:
        return put(op == kBinPut);
      case kBinGet:
      case kLongBinGet:
        return get(op == kBinGet);
      default:
        right_ = false;
    }
  }

  // The unpickler stops there, too.
  void stop() { skip(rest().size()); }
  bool line() {
    const std::size_t end = rest().find('\n');
    return end != std::string_view::npos && skip(end + 1);
  }
  void push(const Node& node) {
    right_ = right_ && node.depth <= kMaxDepth;
    nodes_.push_back(node);
    stack_.push_back(static_cast<Value>(nodes_.size() - 1));
  }
  void text() {
    std::uint32_t length = 0;
    if (!take(length) || rest().size() < length) return stop();
    const std::uint32_t brackets = bracketsOf(rest().substr(0, length));
    skip(length);
    if (brackets == 0) return stack_.push_back(kPlain);
    push({0, brackets, true});
  }
  std::size_t toMark() {
    if (marks_.empty() || marks_.back() > stack_.size()) return right_ = false, 0;
    const std::size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }
  // Takes so many values, which go into another one; what they have in common.
  Node drop(std::size_t count) {
    Node all;
    if (stack_.size() < count) return right_ = false, all;
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    for (auto each = first; each != stack_.end(); ++each) {
      Node& part = nodes_[*each];
      part.complete = true;
      all.depth = std::max(all.depth, part.depth);
      all.brackets = std::max(all.brackets, part.depth == 0 ? part.brackets : 0);
    }
    stack_.erase(first, stack_.end());
    return all;
  }
  void tuple(std::size_t count) {
    const Node parts = drop(count);
    push({parts.depth + 1, parts.brackets, true});
  }
  void fill(std::size_t count) {
    const Node parts = drop(count);
    if (stack_.empty()) return stop();
    Node& into = nodes_[stack_.back()];
    right_ = right_ && !into.complete && parts.depth < kMaxDepth;
    into.depth = std::max(into.depth, parts.depth + 1);
  }
  void call() {
    if (stack_.empty()) return stop();
    const Node args = nodes_[stack_.back()];
    drop(2);
    right_ = right_ && args.brackets <= kMaxBrackets;
    push({args.depth, 0, true});
  }
  void put(bool is_short) {
    std::uint32_t index = 0;
    if (stack_.empty() || !indexInto(index, is_short)) return stop();
    memo_[index] = stack_.back();
  }
  void get(bool is_short) {
    std::uint32_t index = 0;
    if (!indexInto(index, is_short)) return stop();
    const auto found = memo_.find(index);
    if (found == memo_.end()) return stop();
    nodes_[found->second].complete = true;
    stack_.push_back(found->second);
  }
  bool indexInto(std::uint32_t& index, bool is_short) {
    if (!is_short) return take(index);
    std::uint8_t small = 0;
    if (!take(small)) return false;
    index = small;
    return true;
  }

  bool right_ = true;
  std::vector<Node> nodes_ = {Node{}};
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Value> memo_;
};

}  // namespace

bool isShallowPickle(std::span<const char> pickle) {
  return Scan(std::string_view(pickle.data(), pickle.size())).run();
}

}  // namespace weft::rpc
