// Reads a peer's pickle before torch's unpickler of TorchScript does, because that unpickler trusts
// what it reads. It makes tensors over memory that is not theirs (torch._utils), takes memory for
// any index of its memo, reads beyond a name that is cut short, and frees nested values, and parses
// the names of nested types, by recursion without a limit. A tuple that holds another twice, and so
// on, has a type of exponential size; a list that does so is as large where it becomes a list of
// Python's. RRefs it gives to RRefContext, which believes that the sender passes on one of its own.
//
// What a value holds is known when it goes into another one, or is fetched again: one that grows
// later, which torch's pickler never writes, is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace weft::rpc {

// Said of a value, behind its name.
inline constexpr const char* kHasObject =
    " has an object of a TorchScript class or a member of an enum, which torch cannot send";

// Why torch's unpickler must not read the pickle, as a clause; nothing when it may: when it is
// whole, has only the opcodes and names that torch's pickler writes for RPC, nothing in it is
// nested too deeply, and `sender` has forked each RRef in it. Total; any thread.
std::optional<std::string> faultOf(std::span<const char> pickle, std::int64_t sender);

// The first element of the tuple that the pickle is: a literal number, and surely the one that
// torch's unpickler sees. Nothing when it is no such tuple, has a fault, names more than the
// annotation of a container's type, or has anything left over. Total; any thread.
std::optional<std::int64_t> headOf(std::span<const char> pickle);

}  // namespace weft::rpc
