// Every environment variable that Weft reads, in one table. Python's
// `weft.env.table()`, `python -m weft.doctor` and docs/reference/environment.md are made from it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "transport/base/api.h"

namespace weft::rpc::env {

struct Variable {
  const char* name;
  const char* fallback;  // what holds when it is unset, as text
  const char* meaning;
};

WEFT_API std::span<const Variable> table();

// Names in the environment that begin with WEFT_ and are not in the table: probably typing
// mistakes. The agent warns about them once per process.
WEFT_API std::vector<std::string> unknownNames();
void warnAboutUnknownOnce();

}  // namespace weft::rpc::env
