// Reads the ids in torch's RRef messages without torch's unpickler. Total: any bytes give ids or
// nothing. Any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::rpc {

using Rank = std::int32_t;

// torch's GloballyUniqueId: the worker that made the id, and its count there.
struct RRefKey {
  Rank created_on = -1;
  std::int64_t local_id = -1;
  auto operator<=>(const RRefKey&) const = default;
};

struct RRefKeyHash {
  std::size_t operator()(const RRefKey& key) const noexcept {
    return std::hash<std::uint64_t>()(static_cast<std::uint64_t>(key.local_id) ^
                                      static_cast<std::uint64_t>(key.created_on) << 48U);
  }
};

// As torch prints it in its own messages.
std::string toString(const RRefKey& key);

// One reference to a value: the value's id and the reference's own.
struct ForkIds {
  RRefKey value;
  RRefKey fork;
  auto operator<=>(const ForkIds&) const = default;
};

// What a pickled RRef says.
struct PickledRRef {
  Rank owner = -1;
  ForkIds ids;
  Rank parent = -1;  // who pickled it
};

// The payload of RREF_USER_DELETE, RREF_FORK_REQUEST and REMOTE_RET: ((on, id), (on, id)).
std::optional<ForkIds> readForkIds(std::span<const char> payload);
// The payload of RREF_CHILD_ACCEPT: ((on, id),).
std::optional<RRefKey> readForkId(std::span<const char> payload);
// What SCRIPT_REMOTE_CALL or PYTHON_REMOTE_CALL is to create: (..., (on, id), (on, id)), and for
// Python a boolean. The arguments before may look like that, too, so the caller asks torch whether
// there is such a value.
std::optional<ForkIds> readCreatedIds(std::span<const char> payload);

// The value that SCRIPT_RREF_FETCH_CALL or PYTHON_RREF_FETCH_CALL asks for: ((on, id), from).
std::optional<RRefKey> readFetchedId(std::span<const char> payload);

// Everything in `payload` that looks like an RRef which `parent` pickled, with Python's pickler or
// the JIT's; the first `most` of them. A user's own tuple of seven may look the same, so the caller
// asks torch whether there is such a fork.
std::vector<PickledRRef> findPickledRRefs(
    std::span<const char> payload, Rank parent,
    std::size_t most = std::numeric_limits<std::size_t>::max());

}  // namespace weft::rpc
