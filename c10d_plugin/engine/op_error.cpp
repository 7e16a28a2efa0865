#include "c10d_plugin/engine/op_error.h"

#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <typeinfo>

#include "c10d_plugin/engine/call_text.h"
#include "transport/base/interruption.h"

namespace weft::process_group {

namespace {

template <typename Type>
[[noreturn]] void throwCopy(Type error, const OpRecord& call) {
  error.add_context(callText(call));
  throw error;
}

}  // namespace

void throwAsTorch(const char* title, const transport::Error& error) {
  transport::raiseInterrupt();  // whatever the interrupted operation made of it
  constexpr std::string_view kSaid = "Timed out: ";
  std::string_view why = error.text();
  std::string text = std::string(title) + ": ";
  if (error.code() == transport::ErrorCode::kTimeout) {
    // Programs search for "Timed out" with a space on both sides, for every backend.
    if (why.starts_with(kSaid)) why.remove_prefix(kSaid.size());
    if (why.find("Timed out") == std::string_view::npos) text += "Timed out after waiting: ";
  }
  text += why;
  if (error.code() == transport::ErrorCode::kInvalidArgument) TORCH_CHECK(false, text);
  C10_THROW_ERROR(DistBackendError, text);
}

void throwWithCall(const std::exception_ptr& error, const std::optional<OpRecord>& call) {
  if (!call) std::rethrow_exception(error);
  try {
    std::rethrow_exception(error);
  } catch (const c10::DistBackendError& shared) {
    throwCopy(shared, *call);
  } catch (const c10::Error& shared) {
    if (typeid(shared) != typeid(c10::Error)) throw;
    throwCopy(shared, *call);
  }
}

}  // namespace weft::process_group
