#include "rpc_backend/wire/pickle_scan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc_backend/wire/pickle_reader.h"

namespace weft::rpc {
namespace {

using namespace pickle;  // NOLINT(google-build-using-namespace): opcodes and their reader

// A typed list counts twice, since its type stands beside it in a tuple.
constexpr std::uint32_t kMaxDepth = 512;
constexpr std::uint32_t kMaxTypeDepth = 128;  // of a type's name
// How many tuples one may hold, each counted as often as it is held, beside one for each byte.
constexpr std::uint64_t kMaxTuples = 10'000;
// How many values one may hold in all, each counted as often as it is held, beside some for each
// byte; a long text counts as several, by its memory. A pickle that holds each once has fewer
// values than bytes.
constexpr std::uint64_t kMaxValues = 1'000'000;
constexpr std::uint64_t kValuesPerByte = 8;
constexpr std::uint64_t kLettersPerValue = 64;

constexpr const char* kDeep = "its values are nested too deeply";
constexpr const char* kRepeated = "it holds the same values too often";
constexpr const char* kNotForked = "it has an RRef that its sender has not forked";
constexpr const char* kMalformed = "its pickle is cut short, or is not one that torch writes";

enum class Callee : std::uint8_t {
  kNone,   // not something to call
  kTyped,  // parses a type's name
  kRRef,   // does so, too, and adds to RRefContext
  kOther,
};

struct Name {
  std::string_view module;
  std::string_view name;
  Callee callee;
  bool of_list = false;  // notes the type of a list, or of another container
};
// What torch's pickler names where a message has a table of tensors, besides classes and enums:
// those its unpickler cannot make without an ObjLoader, and RPC gives it none.
constexpr std::array kNames{
    Name{"torch.jit._pickle", "restore_type_tag", Callee::kTyped, true},
    Name{"torch.jit._pickle", "build_tensor_from_id", Callee::kOther},
    Name{"torch.jit._pickle", "build_intlist", Callee::kOther, true},
    Name{"torch.jit._pickle", "build_tensorlist", Callee::kOther, true},
    Name{"torch.jit._pickle", "build_doublelist", Callee::kOther, true},
    Name{"torch.jit._pickle", "build_boollist", Callee::kOther, true},
    Name{"torch.distributed.rpc", "rref", Callee::kRRef},
    Name{"torch", "device", Callee::kOther},
    Name{"builtins", "complex", Callee::kOther},
};

bool isOfName(char letter) {
  return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
         (letter >= 'A' && letter <= 'Z') || letter == '_' || letter == '.';
}

// How deeply torch's parser nests over the name of a type; more than kMaxTypeDepth for other texts.
// Their words, signs and brackets behind brackets it nests as well.
std::uint32_t typeDepth(std::string_view text) {
  std::uint32_t open = 0;
  std::uint32_t dots = 0;
  std::uint32_t most = 0;
  char before = ',';
  for (const char letter : text) {
    const bool closed = before == ']' || before == ')';
    if (letter == '[' || letter == '(') {
      if (closed) return kMaxTypeDepth + 1;
      ++open;
    } else if (letter == ']' || letter == ')') {
      if (open-- == 0) return kMaxTypeDepth + 1;
    } else if (letter != ',' && (letter != ' ' || before != ',') && (closed || !isOfName(letter))) {
      return kMaxTypeDepth + 1;
    }
    dots = letter == '.' ? dots + 1 : isOfName(letter) ? dots : 0;
    most = std::max(most, open + dots);
    before = letter;
  }
  return most;
}

const Name* find(std::string_view module, std::string_view name) {
  const auto found = std::ranges::find_if(
      kNames, [&](const Name& one) { return module == one.module && name == one.name; });
  return found == kNames.end() ? nullptr : &*found;
}

bool isScripted(std::string_view module) {
  return module == "__torch__" || module.starts_with("__torch__.");
}

// Runs the pickle on a stack that knows only what values hold.
class Scan : Reader {
 public:
  Scan(std::string_view pickle, std::int64_t sender)
      : Reader(pickle),
        sender_(sender),
        max_tuples_(kMaxTuples + pickle.size()),
        max_values_(kMaxValues + kValuesPerByte * pickle.size()) {}

  std::optional<std::string> run() {
    if (!starts("\x80\x02")) fail();
    unsigned char op = 0;
    while (!fault_) {
      if (!take(op)) fail();
      if (fault_ || op == kStop) break;
      step(op);
    }
    return std::move(fault_);
  }
  // After a run() without a fault.
  std::optional<std::int64_t> head() const {
    return finished() && marks_.empty() && !other_names_ ? head_ : std::nullopt;
  }

 private:
  static constexpr std::uint32_t kPlain = 0;  // the node that holds nothing
  struct Value {
    std::uint32_t node = kPlain;
    std::optional<std::int64_t> number = std::nullopt;  // that it is, literally
  };
  struct Node {
    std::uint32_t depth = 0;
    std::uint32_t type_depth = 0;  // of a text, or of one beside others in a tuple
    bool complete = true;          // it is part of another one, or was fetched
    Callee callee = Callee::kNone;
    std::uint64_t tuples = 0;       // in its type, this one included
    std::uint64_t values = 1;       // in it, this one included
    bool forked_by_sender = false;  // a tuple of an RRef's ids that the sender may make
  };

  void step(unsigned char op) {
    if (op != kBinPut && op != kLongBinPut) head_.reset();
    switch (op) {
      case kBinInt:
      case kBinInt1:
      case kBinInt2:
        return number(op);
      case kLong1:  // torch's unpickler takes no other length
        return next() == 8 ? number(op) : fail();
      case kBinFloat:
        return skip(8) ? stack_.push_back({}) : fail();
      case kNone:
      case kNewTrue:
      case kNewFalse:
        return stack_.push_back({});
      case kBinUnicode:
        return text();
      case kGlobal:
        return global();
      case kEmptyTuple:
        return tuple(0);
      case kEmptyList:
      case kEmptyDict:
        return push({.depth = 1, .complete = false});
      case kMark:
        return marks_.push_back(stack_.size());
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return tuple(op - kTuple1 + 1U);
      case kTuple:
        return tuple(toMark());
      case kAppend:
        return fill(1);
      case kAppends:
        return fill(toMark());
      case kSetItems:
        return setItems(toMark());
      case kReduce:
        return call();
      case kBinPut:
      case kLongBinPut:
        return put(op);
      case kBinGet:
      case kLongBinGet:
        return get(op);
      default:
        return fail();
    }
  }

  // The first fault stays.
  void fail(std::string why = kMalformed) {
    if (!fault_) fault_ = std::move(why);
  }
  void push(const Node& node) {
    if (node.depth > kMaxDepth) fail(kDeep);
    nodes_.push_back(node);
    stack_.push_back({static_cast<std::uint32_t>(nodes_.size() - 1)});
  }
  void number(unsigned char op) {
    std::int64_t value = 0;
    if (!integer(op, value)) return fail();
    if (stack_.empty()) bottom_ = value;
    stack_.push_back({kPlain, value});
  }
  void text() {
    std::string_view text;
    if (!takeText(text)) return fail();
    push({.type_depth = typeDepth(text), .values = 1 + text.size() / kLettersPerValue});
  }
  void global() {
    std::string_view module;
    std::string_view name;
    if (!takeLine(module) || !takeLine(name)) return fail();
    const Name* const known = find(module, name);
    // Its name is not told: it may be anything.
    if (known == nullptr)
      return fail(isScripted(module) ? std::string("it") + kHasObject
                                     : "its pickle names what torch's RPC does not call");
    if (!known->of_list) other_names_ = true;
    push({.callee = known->callee});
  }
  std::size_t toMark() {
    if (marks_.empty() || marks_.back() > stack_.size()) return fail(), 0;
    const std::size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }
  // Takes so many values, which go into another one; what they have in common. A callee, a number
  // to torch, is never among them.
  Node drop(std::size_t count) {
    Node all;
    if (stack_.size() < count) return fail(), all;
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    for (auto each = first; each != stack_.end(); ++each) {
      Node& part = nodes_[each->node];
      if (part.callee != Callee::kNone) fail();
      part.complete = true;
      all.depth = std::max(all.depth, part.depth);
      all.type_depth = std::max(all.type_depth, part.depth == 0 ? part.type_depth : 0);
      all.tuples = std::min(all.tuples + part.tuples, max_tuples_ + 1);
      all.values = std::min(all.values + part.values, max_values_ + 1);
    }
    stack_.erase(first, stack_.end());
    if (all.values > max_values_) fail(kRepeated);
    return all;
  }
  // Whether so many values on top are an RRef's that the sender has forked, as PyRRef and torch's
  // pickler write it: owner, value's id (2), fork's id (2), parent, type.
  bool isForkOfSender(std::size_t count) const {
    constexpr std::size_t kParts = 7;
    constexpr std::size_t kForkedOn = 3;
    constexpr std::size_t kParent = 5;
    if (count != kParts || stack_.size() < count) return false;
    const Value* const parts = &stack_[stack_.size() - count];
    return parts[kForkedOn].number == sender_ && parts[kParent].number == sender_;
  }
  void tuple(std::size_t count) {
    if (count == stack_.size()) head_ = std::exchange(bottom_, std::nullopt);
    const bool forked_by_sender = isForkOfSender(count);
    const Node parts = drop(count);
    if (parts.tuples >= max_tuples_) fail("its tuples hold the same ones too often");
    push({.depth = parts.depth + 1,
          .type_depth = parts.type_depth,
          .tuples = parts.tuples + 1,
          .values = parts.values,
          .forked_by_sender = forked_by_sender});
  }
  void fill(std::size_t count) {
    const Node parts = drop(count);
    if (stack_.empty()) return fail();
    Node& into = nodes_[stack_.back().node];
    if (into.complete) return fail();
    if (parts.depth >= kMaxDepth) fail(kDeep);
    into.depth = std::max(into.depth, parts.depth + 1);
    into.values = std::min(into.values + parts.values, max_values_ + 1);
    if (into.values > max_values_) fail(kRepeated);
  }
  void setItems(std::size_t count) {
    if (count % 2 != 0) return fail();  // the unpickler would read on behind the last key
    fill(count);
  }
  // The callee below the value on top; kNone: there is none.
  Callee callee() const {
    return stack_.size() < 2 ? Callee::kNone : nodes_[stack_[stack_.size() - 2].node].callee;
  }
  void call() {
    const Callee function = callee();
    if (function == Callee::kNone) return fail();
    const Node args = nodes_[stack_.back().node];
    drop(1);
    stack_.pop_back();
    if (function != Callee::kOther && args.type_depth > kMaxTypeDepth) fail(kDeep);
    if (function == Callee::kRRef && !args.forked_by_sender) fail(kNotForked);
    push({.depth = args.depth, .values = args.values});
  }
  void put(unsigned char op) {
    std::uint32_t index = 0;
    // The pickler counts; the unpickler fills its memo up to the index.
    if (stack_.empty() || !takeIndex(op, index) || index > memo_.size()) return fail();
    if (index == memo_.size()) memo_.emplace_back();
    memo_[index] = stack_.back();
  }
  void get(unsigned char op) {
    std::uint32_t index = 0;
    if (!takeIndex(op, index) || index >= memo_.size()) return fail();
    nodes_[memo_[index].node].complete = true;
    stack_.push_back(memo_[index]);
  }

  const std::int64_t sender_;
  const std::uint64_t max_tuples_;
  const std::uint64_t max_values_;
  std::optional<std::string> fault_;
  std::vector<Node> nodes_ = {Node{}};
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Value> memo_;
  // The first value of the stack, if it is a literal number.
  std::optional<std::int64_t> bottom_;
  // Of the tuple that was made of the whole stack just now, or before its place in the memo.
  std::optional<std::int64_t> head_;
  // Whether it names more than the types of containers.
  bool other_names_ = false;
};

}  // namespace

std::optional<std::string> faultOf(std::span<const char> pickle, std::int64_t sender) {
  return Scan(std::string_view(pickle.data(), pickle.size()), sender).run();
}

std::optional<std::int64_t> headOf(std::span<const char> pickle) {
  constexpr std::int64_t kNobody = -1;  // such a tuple has no RRef
  Scan scan(std::string_view(pickle.data(), pickle.size()), kNobody);
  return scan.run() ? std::nullopt : scan.head();
}

}  // namespace weft::rpc
