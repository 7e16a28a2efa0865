#include "rpc_backend/wire/rref_wire.h"

#include <array>
#include <cstring>
#include <limits>
#include <string_view>

#include "rpc_backend/wire/pickle_ops.h"

namespace weft::rpc {

namespace {

using namespace pickle;  // NOLINT(google-build-using-namespace): opcodes only

class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : rest_(bytes) {}

  bool op(unsigned char& value) {
    if (rest_.empty()) return false;
    value = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return true;
  }
  bool skip(std::size_t count) {
    if (rest_.size() < count) return false;
    rest_.remove_prefix(count);
    return true;
  }
  // An integer opcode. Python's pickler may begin a new frame before any opcode.
  bool integer(std::int64_t& value) {
    unsigned char code = 0;
    if (!op(code)) return false;
    if (code == kFrame && (!skip(8) || !op(code))) return false;
    return integer(code, value);
  }
  bool integer(unsigned char code, std::int64_t& value) {
    switch (code) {
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
  bool finished() const { return rest_.empty(); }

 private:
  template <typename T>
  bool number(std::int64_t& value) {
    T read = 0;
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(&read, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    value = static_cast<std::int64_t>(read);
    return true;
  }
  // Little endian, two's complement, up to 8 bytes.
  bool longer(std::int64_t& value) {
    unsigned char length = 0;
    if (!op(length) || length == 0 || length > 8 || rest_.size() < length) return false;
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

bool asRank(std::int64_t number, Rank& rank) {
  // torch's worker_id_t has 16 bits.
  if (number < 0 || number > std::numeric_limits<std::int16_t>::max()) return false;
  rank = static_cast<Rank>(number);
  return true;
}

bool asKey(std::int64_t created_on, std::int64_t local_id, RRefKey& key) {
  key.local_id = local_id;
  return local_id >= 0 && asRank(created_on, key.created_on);
}

// The integers of a pickle of nothing but integers and tuples; false when it is not that, or
// there are not exactly `N`. How torch nests them is known from the message's type.
template <std::size_t N>
bool readIntegers(std::span<const char> payload, std::array<std::int64_t, N>& out) {
  Cursor cursor(std::string_view(payload.data(), payload.size()));
  unsigned char code = 0;
  unsigned char version = 0;
  if (!cursor.op(code) || code != kProto || !cursor.op(version)) return false;
  std::size_t count = 0;
  while (cursor.op(code)) {
    switch (code) {
      case kMark:
      case kTuple:
      case kTuple1:
      case kTuple2:
        break;
      case kBinPut:
        if (!cursor.skip(1)) return false;
        break;
      case kLongBinPut:
        if (!cursor.skip(4)) return false;
        break;
      case kStop:
        return cursor.finished() && count == N;
      default:
        if (count == N || !cursor.integer(code, out[count])) return false;
        ++count;
    }
  }
  return false;
}

// Whether a string follows, or a reference to one seen before: the value's type.
bool textFollows(Cursor cursor) {
  unsigned char code = 0;
  if (!cursor.op(code)) return false;
  if (code == kFrame && (!cursor.skip(8) || !cursor.op(code))) return false;
  return code == kBinUnicode || code == kShortBinUnicode || code == kBinGet || code == kLongBinGet;
}

}  // namespace

std::string toString(const RRefKey& key) {
  return "GloballyUniqueId(created_on=" + std::to_string(key.created_on) +
         ", local_id=" + std::to_string(key.local_id) + ")";
}

std::optional<ForkIds> readForkIds(std::span<const char> payload) {
  std::array<std::int64_t, 4> numbers{};
  ForkIds ids;
  if (!readIntegers(payload, numbers) || !asKey(numbers[0], numbers[1], ids.value) ||
      !asKey(numbers[2], numbers[3], ids.fork)) {
    return std::nullopt;
  }
  return ids;
}

std::optional<RRefKey> readForkId(std::span<const char> payload) {
  std::array<std::int64_t, 2> numbers{};
  RRefKey key;
  if (!readIntegers(payload, numbers) || !asKey(numbers[0], numbers[1], key)) return std::nullopt;
  return key;
}

std::optional<RRefKey> readFetchedId(std::span<const char> payload) {
  std::array<std::int64_t, 3> numbers{};
  RRefKey key;
  if (!readIntegers(payload, numbers) || !asKey(numbers[0], numbers[1], key)) return std::nullopt;
  return key;
}

std::vector<PickledRRef> findPickledRRefs(std::span<const char> payload, Rank parent) {
  std::vector<PickledRRef> found;
  const std::string_view bytes(payload.data(), payload.size());
  for (std::size_t at = bytes.find('('); at != std::string_view::npos;
       at = bytes.find('(', at + 1)) {
    Cursor cursor(bytes.substr(at + 1));
    std::array<std::int64_t, 6> numbers{};
    bool complete = true;
    for (std::int64_t& number : numbers)
      complete = complete && cursor.integer(number);
    PickledRRef rref;
    if (complete && textFollows(cursor) && asRank(numbers[0], rref.owner) &&
        asKey(numbers[1], numbers[2], rref.ids.value) &&
        asKey(numbers[3], numbers[4], rref.ids.fork) && asRank(numbers[5], rref.parent) &&
        rref.parent == parent && rref.ids.fork.created_on == parent) {
      found.push_back(rref);
    }
  }
  return found;
}

}  // namespace weft::rpc
