// How deeply the values of a pickle for torch's unpickler of TorchScript are nested. That unpickler
// frees nested values, and parses the names of nested types, by recursion without a limit: some
// hundred thousand bytes of a peer would overflow the stack.
//
// What a value holds is known when it goes into another one, or is fetched again: one that grows
// later, which torch's pickler never writes, is refused.
#pragma once

#include <span>

namespace weft::rpc {

// Whether the pickle has only opcodes that torch's pickler writes, and nothing nested too deeply.
// True for what is cut short: the unpickler refuses it. Total; any thread.
bool isShallowPickle(std::span<const char> pickle);

}  // namespace weft::rpc
