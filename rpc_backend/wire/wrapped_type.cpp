#include "rpc_backend/wire/wrapped_type.h"

#include <cstring>
#include <string_view>
#include <vector>

#include "rpc_backend/wire/pickle_ops.h"

namespace weft::rpc {

namespace {

using namespace pickle;  // NOLINT(google-build-using-namespace): opcodes only

constexpr std::size_t kMaxDepth = 4096;  // values on the stack; real tuples need tens

// What the machine must know of a value. `number` of a tuple is its first element's.
struct Value {
  enum class Kind : std::uint8_t { kNumber, kTupleOfNumber, kContainer, kOther, kGlobal };
  Kind kind = Kind::kOther;
  std::int64_t number = 0;
};

// Runs the pickle on a stack of Values: the same stack effects as torch's unpickler for
// the opcodes above, and refusal of every other one.
class Machine {
 public:
  explicit Machine(std::string_view bytes) : rest_(bytes) {}

  std::optional<std::int64_t> run() {
    if (!starts("\x80\x02")) return std::nullopt;
    while (true) {
      unsigned char op = 0;
      if (!take(op)) return std::nullopt;
      if (op == kStop) break;
      if (!step(op) || stack_.size() > kMaxDepth || marks_.size() > kMaxDepth) return std::nullopt;
    }
    if (!rest_.empty() || !marks_.empty() || stack_.size() != 1) return std::nullopt;
    if (stack_.back().kind != Value::Kind::kTupleOfNumber) return std::nullopt;
    return stack_.back().number;
  }

 private:
  bool starts(std::string_view prefix) {
    if (!rest_.starts_with(prefix)) return false;
    rest_.remove_prefix(prefix.size());
    return true;
  }
  template <typename T>
  bool take(T& value) {
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return true;
  }
  bool skip(std::size_t count) {
    if (rest_.size() < count) return false;
    rest_.remove_prefix(count);
    return true;
  }
  bool push(Value::Kind kind, std::int64_t number = 0) {
    stack_.push_back({kind, number});
    return true;
  }
  template <typename T>
  bool number() {
    T value = 0;
    return take(value) && push(Value::Kind::kNumber, static_cast<std::int64_t>(value));
  }

  bool step(unsigned char op) {
    switch (op) {
      case kBinInt:
        return number<std::int32_t>();
      case kBinInt1:
        return number<std::uint8_t>();
      case kBinInt2:
        return number<std::uint16_t>();
      case kLong1:
        return starts("\x08") && number<std::int64_t>();
      case kBinFloat:
        return skip(8) && push(Value::Kind::kOther);
      case kNone:
      case kNewTrue:
      case kNewFalse:
        return push(Value::Kind::kOther);
      case kBinUnicode:
        return text();
      case kBinGet:
        return skip(1) && push(Value::Kind::kOther);
      case kLongBinGet:
        return skip(4) && push(Value::Kind::kOther);
      case kBinPut:
        return !stack_.empty() && skip(1);
      case kLongBinPut:
        return !stack_.empty() && skip(4);
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
    std::uint32_t length = 0;
    return take(length) && skip(length) && push(Value::Kind::kOther);
  }
  // The last `count` values become one tuple. A global is a number to torch: never inside.
  bool tuple(std::size_t count) {
    if (stack_.size() < count || count == 0) return false;
    const std::size_t first = stack_.size() - count;
    for (std::size_t i = first; i < stack_.size(); ++i) {
      if (stack_[i].kind == Value::Kind::kGlobal) return false;
    }
    const Value head = stack_[first];
    stack_.resize(first);
    return push(
        head.kind == Value::Kind::kNumber ? Value::Kind::kTupleOfNumber : Value::Kind::kOther,
        head.number);
  }
  bool fill(std::size_t count) {
    if (stack_.size() <= count) return false;
    const std::size_t first = stack_.size() - count;
    if (stack_[first - 1].kind != Value::Kind::kContainer) return false;
    for (std::size_t i = first; i < stack_.size(); ++i) {
      if (stack_[i].kind == Value::Kind::kGlobal) return false;
    }
    stack_.resize(first);
    return true;
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

  std::string_view rest_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
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
  if (!type) return std::nullopt;
  return WrappedMessage{*type, payload.first(inner)};
}

}  // namespace weft::rpc
