// The server's end of a call to something published: rpc_backend's ScriptService.
//
// A call travels as a scripted call of torch's to one of the names below. So distributed autograd,
// profiling, RRefs and the request policies treat it as such, and nothing in it is unpickled as
// Python. Its values, in order:
//
//   kCallName       name, version (0: newest), method, names of the last arguments (None: none),
//                   arguments…
//   kNamedCallName  the same; a result with NamedTuples comes beside their names (result_names.h)
//   kRemoteName     an empty list whose element type is that of the RRef, then as kCallName
//   kListName       nothing; the answer lists what is published, (name, version, signatures) each
//
// Any other name may be that of something published, for callers that use only torch's API:
// rpc_sync("worker", scripted_function) finds a function published under its qualified name.
#pragma once

#include "jit_ops/serve/servable.h"

namespace weft::ops {

inline constexpr const char* kCallName = "__weft__.call";
inline constexpr const char* kNamedCallName = "__weft__.call_named";
inline constexpr const char* kRemoteName = "__weft__.remote";
inline constexpr const char* kListName = "__weft__.list";

// Where the arguments begin in a call.
inline constexpr std::size_t kCallHeader = 4;

// Puts the service in place. Called once when the library is loaded; starts nothing.
void installService();

}  // namespace weft::ops
