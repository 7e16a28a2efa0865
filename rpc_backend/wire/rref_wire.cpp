#include "rpc_backend/wire/rref_wire.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "rpc_backend/wire/pickle_reader.h"

namespace weft::rpc {

namespace {

using namespace pickle;  // NOLINT(google-build-using-namespace): opcodes and their reader

// An opcode. Python's pickler may begin a new frame before any.
bool opcode(Reader& reader, unsigned char& code) {
  return reader.take(code) && (code != kFrame || (reader.skip(8) && reader.take(code)));
}

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

// The integers of a pickle of nothing but integers, booleans and tuples; false when the rest of it
// is not that, or there are not exactly `N`. How torch nests them is known from the message's type.
template <std::size_t N>
bool readIntegers(Reader reader, std::array<std::int64_t, N>& out) {
  std::size_t count = 0;
  for (unsigned char code = 0; reader.take(code);) {
    switch (code) {
      case kMark:
      case kTuple:
      case kTuple1:
      case kTuple2:
      case kNewTrue:
      case kNewFalse:
        break;
      case kBinPut:
        if (!reader.skip(1)) return false;
        break;
      case kLongBinPut:
        if (!reader.skip(4)) return false;
        break;
      case kStop:
        return reader.finished() && count == N;
      default:
        if (count == N || !reader.integer(code, out[count])) return false;
        ++count;
    }
  }
  return false;
}

template <std::size_t N>
bool readIntegers(std::span<const char> payload, std::array<std::int64_t, N>& out) {
  Reader reader(std::string_view(payload.data(), payload.size()));
  // The protocol, and its version.
  return reader.starts("\x80") && reader.skip(1) && readIntegers(reader, out);
}

bool asForkIds(const std::array<std::int64_t, 4>& numbers, ForkIds& ids) {
  return asKey(numbers[0], numbers[1], ids.value) && asKey(numbers[2], numbers[3], ids.fork);
}

// The key with which `N` integers begin.
template <std::size_t N>
std::optional<RRefKey> readKey(std::span<const char> payload) {
  std::array<std::int64_t, N> numbers{};
  RRefKey key;
  if (!readIntegers(payload, numbers) || !asKey(numbers[0], numbers[1], key)) return std::nullopt;
  return key;
}

// A string, or a reference to one seen before: the value's type.
bool isText(unsigned char code) {
  return code == kBinUnicode || code == kShortBinUnicode || code == kBinGet || code == kLongBinGet;
}

// What follows the mark of a pickled RRef.
bool readPickledRRef(Reader reader, PickledRRef& rref) {
  std::array<std::int64_t, 6> numbers{};
  unsigned char code = 0;
  for (std::int64_t& number : numbers)
    if (!opcode(reader, code) || !reader.integer(code, number)) return false;
  return opcode(reader, code) && isText(code) && asRank(numbers[0], rref.owner) &&
         asKey(numbers[1], numbers[2], rref.ids.value) &&
         asKey(numbers[3], numbers[4], rref.ids.fork) && asRank(numbers[5], rref.parent);
}

}  // namespace

std::string toString(const RRefKey& key) {
  return "GloballyUniqueId(created_on=" + std::to_string(key.created_on) +
         ", local_id=" + std::to_string(key.local_id) + ")";
}

std::optional<ForkIds> readForkIds(std::span<const char> payload) {
  std::array<std::int64_t, 4> numbers{};
  ForkIds ids;
  if (!readIntegers(payload, numbers) || !asForkIds(numbers, ids)) return std::nullopt;
  return ids;
}

std::optional<ForkIds> readCreatedIds(std::span<const char> payload) {
  constexpr std::size_t kLongest = 64;  // four integers of 64 bits and what is around them
  const std::string_view bytes(payload.data(), payload.size());
  std::array<std::int64_t, 4> numbers{};
  ForkIds ids;
  // From the front, so that what begins amid an argument has too many.
  for (std::size_t at = bytes.size() - std::min(bytes.size(), kLongest); at < bytes.size(); ++at) {
    if (readIntegers(Reader(bytes.substr(at)), numbers) && asForkIds(numbers, ids)) return ids;
  }
  return std::nullopt;
}

std::optional<RRefKey> readForkId(std::span<const char> payload) { return readKey<2>(payload); }
std::optional<RRefKey> readFetchedId(std::span<const char> payload) { return readKey<3>(payload); }

std::vector<PickledRRef> findPickledRRefs(std::span<const char> payload, Rank parent,
                                          std::size_t most) {
  std::vector<PickledRRef> found;
  const std::string_view bytes(payload.data(), payload.size());
  for (std::size_t at = bytes.find('('); at != std::string_view::npos && found.size() < most;
       at = bytes.find('(', at + 1)) {
    PickledRRef rref;
    if (readPickledRRef(Reader(bytes.substr(at + 1)), rref) && rref.parent == parent &&
        rref.ids.fork.created_on == parent) {
      found.push_back(rref);
    }
  }
  return found;
}

}  // namespace weft::rpc
