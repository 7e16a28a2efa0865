// CallRange: shows a call to torch's profiler, if one listens, as "weft::rpc worker1.f" with its
// bytes; and what the callee does with it by the same name, with the time it waited for a thread.
//
// Threads: a range begins and ends on one.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "transport/base/api.h"

namespace weft::rpc {

class WEFT_API CallRange {
 public:
  // Takes the call that this thread sends next; its range ends with this.
  CallRange();
  ~CallRange();
  CallRange(const CallRange&) = delete;
  CallRange& operator=(const CallRange&) = delete;

  // Whether anybody listens.
  static bool wanted() {
    return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
  }
  // Of a call that is sent: in the CallRange that waits for one; where none does, in `own`.
  static void begin(std::optional<CallRange>& own, const std::string& worker,
                    std::string_view function, std::int64_t bytes);
  // Of a request that is run.
  static void begin(std::optional<at::RecordFunction>& own, const std::string& worker,
                    std::string_view function, std::int64_t bytes, std::int64_t queued_us);

 private:
  CallRange* const outer_;
  std::optional<at::RecordFunction> range_;
};

}  // namespace weft::rpc
