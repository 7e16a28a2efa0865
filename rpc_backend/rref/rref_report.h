// RRefRow: a row of weft.rref_report(), made of what torch's RRefContext and an RRefTable know.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rpc_backend/rref/rref_table.h"
#include "rpc_backend/torch_private/torch_rrefs.h"

namespace weft::rpc {

// A Python value, as only a Python process can describe it.
struct RRefValue {
  std::string type;
  std::uint64_t bytes = 0;  // of the tensors in it
};

// A value owned here, or a reference held here to a value elsewhere.
struct RRefRow {
  RRefKey id;
  bool owned = false;
  std::string type;
  Rank owner = -1;
  std::vector<Rank> holders;           // of a value owned here, one per fork, ordered; -1: unknown
  std::optional<double> age;           // seconds since Weft saw it first; nothing when it did not
  std::optional<std::uint64_t> bytes;  // of a value owned here, when it is ready
};

using DescribeValue = std::function<RRefValue(const c10::IValue&)>;
using DropRRef = std::function<void(torch_rrefs::RRefPtr)>;

// Owned values first, then by id. It looks into each value for its size, so it is no more for a hot
// path than printing the value. `describe` may be empty; `drop` releases what may be the last
// reference to a value. When this process has a current agent; any thread, no GIL held.
std::vector<RRefRow> rrefReport(const RRefTable& table, const DescribeValue& describe,
                                const DropRRef& drop);

}  // namespace weft::rpc
