#include "rpc_backend/wire/wrapped_type.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "rpc_backend/wire/pickle_reader.h"
#include "rpc_backend/wire/pickle_scan.h"

namespace weft::rpc {

namespace {

using namespace pickle;  // NOLINT(google-build-using-namespace): opcodes and their reader

constexpr std::size_t kMaxDepth = 4096;  // values on the stack; real tuples need tens

// What Machine knows of a value. The `number` of a tuple is its first element's.
struct Value {
  enum class Kind : std::uint8_t { kNumber, kTupleOfNumber, kContainer, kOther, kGlobal };
  Kind kind = Kind::kOther;
  std::int64_t number = 0;
};

// Runs the pickle on a stack of Values, with the stack effects of torch's unpickler for the opcodes
// above. It refuses all others.
class Machine : Reader {
 public:
  using Reader::Reader;

  std::optional<std::int64_t> run() {
    if (!starts("\x80\x02")) return std::nullopt;
    while (true) {
      unsigned char op = 0;
      if (!take(op)) return std::nullopt;
      if (op == kStop) break;
      if (!step(op) || stack_.size() > kMaxDepth || marks_.size() > kMaxDepth) return std::nullopt;
    }
    if (!finished() || !marks_.empty() || stack_.size() != 1) return std::nullopt;
    if (stack_.back().kind != Value::Kind::kTupleOfNumber) return std::nullopt;
    return stack_.back().number;
  }

 private:
  bool push(Value::Kind kind, std::int64_t number = 0) {
    stack_.push_back({kind, number});
    return true;
  }
  bool number(unsigned char op) {
    std::int64_t value = 0;
    return integer(op, value) && push(Value::Kind::kNumber, value);
  }

  bool step(unsigned char op) {
    switch (op) {
      case kBinInt:
      case kBinInt1:
      case kBinInt2:
        return number(op);
      case kLong1:  // torch's unpickler takes no other length
        return next() == 8 && number(op);
      case kBinFloat:
        return skip(8) && push(Value::Kind::kOther);
      case kNone:
      case kNewTrue:
      case kNewFalse:
        return push(Value::Kind::kOther);
      case kBinUnicode:
        return text();
      case kBinGet:
      case kLongBinGet:
        return get(op);
      case kBinPut:
      case kLongBinPut:
        return put(op);
      case kMark:
        marks_.push_back(stack_.size());
        return true;
      case kEmptyTuple:
        return push(Value::Kind::kOther);
      case kTuple1:
        return tuple(1);
      case kTuple2:
        return tuple(2);
      case kTuple3:
        return tuple(3);
      case kEmptyDict:
      case kEmptyList:
        return push(Value::Kind::kContainer);
      case kGlobal:
        return global();
      case kReduce:
        return reduce();
      case kAppend:
        return fill(1);
      case kTuple:
      case kAppends:
      case kSetItems:
        return toMark(op);
      default:
        return false;
    }
  }

  bool text() {
    std::string_view text;
    return takeText(text) && push(Value::Kind::kOther);
  }
  bool put(unsigned char op) {
    std::uint32_t index = 0;
    if (!takeIndex(op, index) || stack_.empty()) return false;
    if (stack_.back().kind == Value::Kind::kGlobal) {
      globals_.insert(index);
    } else {
      globals_.erase(index);
    }
    return true;
  }
  // Of a remembered value only this counts: whether it is the name, which torch writes once.
  bool get(unsigned char op) {
    std::uint32_t index = 0;
    return takeIndex(op, index) &&
           push(globals_.contains(index) ? Value::Kind::kGlobal : Value::Kind::kOther);
  }
  // Takes the last `count` values off the stack. A global, a number to torch, is never among them.
  bool drop(std::size_t count) {
    if (stack_.size() < count) return false;
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    if (std::any_of(first, stack_.end(),
                    [](const Value& value) { return value.kind == Value::Kind::kGlobal; })) {
      return false;
    }
    stack_.erase(first, stack_.end());
    return true;
  }
  // The last `count` values become one tuple.
  bool tuple(std::size_t count) {
    if (stack_.size() < count || count == 0) return false;
    const Value head = stack_[stack_.size() - count];
    return drop(count) && push(head.kind == Value::Kind::kNumber ? Value::Kind::kTupleOfNumber
                                                                 : Value::Kind::kOther,
                               head.number);
  }
  // The last `count` values become the contents of the container below them.
  bool fill(std::size_t count) {
    return drop(count) && !stack_.empty() && stack_.back().kind == Value::Kind::kContainer;
  }
  bool toMark(unsigned char op) {
    if (marks_.empty() || marks_.back() > stack_.size()) return false;
    const std::size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return op == kTuple ? tuple(count) : fill(count);
  }
  // The one name torch writes here: the annotation of a container's type.
  bool global() {
    return starts("torch.jit._pickle\nrestore_type_tag\n") && push(Value::Kind::kGlobal);
  }
  bool reduce() {
    if (stack_.size() < 2 || stack_[stack_.size() - 2].kind != Value::Kind::kGlobal) return false;
    if (stack_.back().kind == Value::Kind::kGlobal) return false;
    // A mark between or behind the two would make torch's stack differ from ours.
    if (!marks_.empty() && marks_.back() + 2 > stack_.size()) return false;
    stack_.resize(stack_.size() - 2);
    return push(Value::Kind::kOther);
  }

  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::set<std::uint32_t> globals_;  // where the memo has the name
};

}  // namespace

std::optional<WrappedMessage> readWrappedType(std::span<const char> payload) {
  constexpr std::size_t kLength = 8;
  if (payload.size() <= kLength) return std::nullopt;
  std::uint64_t length = 0;
  for (std::size_t i = payload.size() - kLength; i < payload.size(); ++i) {
    length = length << 8 | static_cast<unsigned char>(payload[i]);  // big endian
  }
  const std::size_t body = payload.size() - kLength;
  if (length == 0 || length >= body) return std::nullopt;
  const std::size_t inner = body - length;
  const auto type = Machine(std::string_view(payload.data() + inner, length)).run();
  if (!type || faultOf(payload.subspan(inner, length))) return std::nullopt;
  return WrappedMessage{*type, payload.first(inner)};
}

}  // namespace weft::rpc
