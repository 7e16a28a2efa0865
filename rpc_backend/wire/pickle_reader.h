// Reads the pickle opcodes that torch's picklers (Python's and the JIT's) write in its RPC
// messages; Python's pickletools module documents each. Total: what is not there gives false.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace weft::rpc::pickle {

enum Op : unsigned char {
  kMark = '(',
  kEmptyTuple = ')',
  kStop = '.',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kReduce = 'R',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kFrame = 0x95,
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool finished() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }
  int next() const { return rest_.empty() ? -1 : static_cast<unsigned char>(rest_.front()); }
  bool starts(std::string_view prefix) {
    if (!rest_.starts_with(prefix)) return false;
    rest_.remove_prefix(prefix.size());
    return true;
  }
  bool skip(std::size_t count) {
    if (rest_.size() < count) return false;
    rest_.remove_prefix(count);
    return true;
  }
  template <typename T>
  bool take(T& value) {
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return true;
  }
  // One of the two lines that follow kGlobal.
  bool takeLine(std::string_view& text) {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) return false;
    text = rest_.substr(0, end);
    return skip(end + 1);
  }
  // What follows kBinUnicode.
  bool takeText(std::string_view& text) {
    std::uint32_t length = 0;
    if (!take(length) || rest_.size() < length) return false;
    text = rest_.substr(0, length);
    return skip(length);
  }
  // What follows an opcode of the memo.
  bool takeIndex(unsigned char op, std::uint32_t& index) {
    if (op == kLongBinPut || op == kLongBinGet) return take(index);
    std::uint8_t small = 0;
    if (!take(small)) return false;
    index = small;
    return true;
  }
  // What follows an opcode of an integer.
  bool integer(unsigned char op, std::int64_t& value) {
    switch (op) {
      case kBinInt1:
        return number<std::uint8_t>(value);
      case kBinInt2:
        return number<std::uint16_t>(value);
      case kBinInt:
        return number<std::int32_t>(value);
      case kLong1:
        return longer(value);
      default:
        return false;
    }
  }

 private:
  template <typename T>
  bool number(std::int64_t& value) {
    T read = 0;
    if (!take(read)) return false;
    value = static_cast<std::int64_t>(read);
    return true;
  }
  // Little endian, two's complement, up to 8 bytes.
  bool longer(std::int64_t& value) {
    unsigned char length = 0;
    if (!take(length) || length == 0 || length > 8 || rest_.size() < length) return false;
    std::uint64_t bits = (rest_[length - 1U] & '\x80') != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = length; i-- > 0;) {
      bits = bits << 8U | static_cast<unsigned char>(rest_[i]);
    }
    rest_.remove_prefix(length);
    value = static_cast<std::int64_t>(bits);
    return true;
  }

  std::string_view rest_;
};

}  // namespace weft::rpc::pickle
