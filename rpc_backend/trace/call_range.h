// CallRange: shows a call to torch's profiler, if one listens, as "weft::rpc worker1.f" with its
// bytes. The callee shows the request under the same name, with the time it waited for a thread.
//
// Threads: a range begins and ends on the same thread.
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
  // Shows the call that this thread sends next, until this object's end.
  CallRange();
  ~CallRange();
  CallRange(const CallRange&) = delete;
  CallRange& operator=(const CallRange&) = delete;

  // Whether a profiler listens.
  static bool wanted() {
    return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
  }
  // A call is sent: begins its range in this thread's CallRange, or, if there is none, in `own`.
  static void begin(std::optional<CallRange>& own, const std::string& worker,
                    std::string_view function, std::int64_t bytes);
  // A request is run: begins its range in `own`.
  static void begin(std::optional<at::RecordFunction>& own, const std::string& worker,
                    std::string_view function, std::int64_t bytes, std::int64_t queued_us);

 private:
  CallRange* const outer_;
  std::optional<at::RecordFunction> range_;
};

}  // namespace weft::rpc
