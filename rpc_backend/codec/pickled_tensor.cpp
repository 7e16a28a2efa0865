#include "rpc_backend/codec/pickled_tensor.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rpc_backend/codec/pickled_values.h"
#include "rpc_backend/codec/rebuilt_tensor.h"
#include "rpc_backend/wire/pickle_reader.h"

namespace weft::rpc {
namespace {

using namespace pickle;          // NOLINT(google-build-using-namespace): opcodes and their reader
using namespace pickled_values;  // NOLINT(google-build-using-namespace)

constexpr int kMaxDepth = 8;   // of tuples in each other; torch's pickler makes 3
constexpr int kMaxParts = 16;  // storages and tensors; torch's pickler makes 7

using Sections = std::map<std::string, std::string_view, std::less<>>;

// Lines of a name and a length, an empty line, and the sections of these lengths.
Sections sectionsOf(std::string_view bytes) {
  std::vector<std::pair<std::string, std::uint64_t>> heads;
  while (!bytes.starts_with('\n')) {
    const std::size_t end = bytes.find('\n');
    check(end != std::string_view::npos, "its sections are cut short");
    const std::string_view line = bytes.substr(0, end);
    const std::size_t space = line.find(' ');
    std::uint64_t length = 0;
    const auto [rest, failed] =
        std::from_chars(line.data() + std::min(space, end - 1) + 1, line.data() + end, length);
    check(space != std::string_view::npos && failed == std::errc() && rest == line.data() + end,
          "a section has no length");
    heads.emplace_back(line.substr(0, space), length);
    bytes.remove_prefix(end + 1);
  }
  bytes.remove_prefix(1);
  Sections sections;
  for (auto& [name, length] : heads) {
    check(length <= bytes.size(), "its sections are cut short");
    sections.insert_or_assign(std::move(name), bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  check(bytes.empty(), "it has bytes of no section");
  return sections;
}

c10::ScalarType typeOf(const std::string& storage) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::Undefined); ++i) {
    const auto type = static_cast<c10::ScalarType>(i);
    if (storage == std::string("torch.") + c10::toString(type) + "Storage") return type;
  }
  check(false, "its type of elements is unknown");
  return c10::ScalarType::Undefined;
}

// Runs the pickle. A name is a text here, and lists and dicts are tuples of their items: torch's
// pickler fills them at once, and shows none of them before.
class Machine : Reader {
 public:
  Machine(std::string_view meta, const Sections& sections) : Reader(meta), sections_(sections) {}

  at::Tensor run() {
    check(starts("\x80\x02"), "it is not a pickle");
    unsigned char op = 0;
    while (check(take(op), "it is cut short"), op != kStop)
      step(op);
    check(stack_.size() == 1, "it is not one value");
    const auto tensors = partsOf(stack_.back().value, 1);
    check(tensors.size() == 1, "it is not one tensor");
    return tensorOf(tensors.front());
  }

 private:
  struct Value {
    at::IValue value;
    int depth = 0;
  };

  void step(unsigned char op) {
    switch (op) {
      case kBinInt:
      case kBinInt1:
      case kBinInt2:
      case kLong1:
        return number(op);
      case kBinFloat:
        return real();
      case kNone:
        return push({});
      case kNewTrue:
      case kNewFalse:
        return push(op == kNewTrue);
      case kBinUnicode:
        return text();
      case kGlobal:
        return global();
      case kBinPersonalId:
        return push(storage(pop().value));
      case kEmptyTuple:
      case kEmptyList:
      case kEmptyDict:
        return tuple(0);
      case kMark:
        return marks_.push_back(stack_.size());
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return tuple(op - kTuple1 + 1U);
      case kTuple:
        return tuple(toMark());
      case kAppends:
      case kSetItems:
        return fill();
      case kReduce:
        return call();
      case kBinPut:
      case kLongBinPut:
        return put(op);
      case kBinGet:
      case kLongBinGet:
        return get(op);
      default:
        check(false, "it has a value that torch's pickler does not write");
    }
  }

  void push(at::IValue value) { stack_.push_back({std::move(value)}); }
  Value pop() {
    check(!stack_.empty() && (marks_.empty() || marks_.back() < stack_.size()),
          "a value is missing");
    Value top = std::move(stack_.back());
    stack_.pop_back();
    return top;
  }
  void number(unsigned char op) {
    std::int64_t value = 0;
    check(integer(op, value), "it is cut short");
    push(value);
  }
  void real() {
    std::uint64_t bits = 0;
    check(take(bits), "it is cut short");
    bits = __builtin_bswap64(bits);
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    push(value);
  }
  void text() {
    std::string_view text;
    check(takeText(text), "it is cut short");
    push(std::string(text));
  }
  void global() {
    std::string_view module;
    std::string_view name;
    check(takeLine(module) && takeLine(name), "it is cut short");
    push(std::string(module) + "." + std::string(name));
  }
  std::size_t toMark() {
    check(!marks_.empty() && marks_.back() <= stack_.size(), "a mark is missing");
    const std::size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }
  void tuple(std::size_t count) {
    check(count <= stack_.size(), "a value is missing");
    std::vector<at::IValue> parts;
    int depth = 0;
    for (auto part = stack_.end() - static_cast<std::ptrdiff_t>(count); part != stack_.end();
         ++part) {
      depth = std::max(depth, part->depth);
      parts.push_back(std::move(part->value));
    }
    check(depth < kMaxDepth, "it is nested too deeply");
    stack_.resize(stack_.size() - count);
    stack_.push_back({c10::ivalue::Tuple::create(std::move(parts)), depth + 1});
  }
  void fill() {
    tuple(toMark());
    Value items = pop();
    pop();  // the empty one
    stack_.push_back(std::move(items));
  }
  void put(unsigned char op) {
    const std::size_t index = indexAfter(op);
    check(!stack_.empty() && index <= memo_.size(), "its memo has no such place");
    if (index == memo_.size()) memo_.emplace_back();
    memo_[index] = stack_.back();
  }
  void get(unsigned char op) {
    const std::size_t index = indexAfter(op);
    check(index < memo_.size(), "its memo has no such place");
    stack_.push_back(memo_[index]);
  }
  std::size_t indexAfter(unsigned char op) {
    std::uint32_t index = 0;
    check(takeIndex(op, index), "it is cut short");
    return index;
  }

  // ("storage", type, section, device, elements): the section says how many there are. It stands
  // for the number of the storage.
  std::int64_t storage(const at::IValue& id) {
    const auto parts = partsOf(id, 5);
    const auto type = typeOf(textOf(parts[1]));
    const auto found = sections_.find(textOf(parts[2]));
    check(found != sections_.end(), "a section is missing");
    const std::string_view bytes = found->second;
    count();
    const at::Tensor copy = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    if (!bytes.empty()) std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
    storages_.push_back({copy.storage(), type});
    return static_cast<std::int64_t>(storages_.size() - 1);
  }
  // Each takes memory, and could be made again by a few bytes.
  void count() { check(++parts_ <= kMaxParts, "it has too many parts"); }

  void call() {
    const auto args = pop().value;
    const at::IValue function = pop().value;
    const std::string& name = textOf(function);
    if (name == "collections.OrderedDict") return push({});  // of hooks, which nobody sends
    if (name == "torch.jit._pickle.build_tensorlist" ||
        name == "torch.jit._pickle.restore_type_tag")
      return push(partsOf(args, 1)[0]);
    count();
    push(rebuildTensor(name, args, storages_));
  }

  const Sections& sections_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Value> memo_;
  std::vector<TypedStorage> storages_;
  int parts_ = 0;
};

}  // namespace

at::Tensor readPickledTensor(std::span<const char> bytes) try {
  const Sections sections = sectionsOf({bytes.data(), bytes.size()});
  const auto meta = sections.find("meta");
  check(meta != sections.end(), "a section is missing");
  return Machine(meta->second, sections).run();
} catch (const c10::Error& error) {
  TORCH_CHECK(false, "weft: a pickled tensor cannot be read: ", error.what_without_backtrace());
}

}  // namespace weft::rpc
