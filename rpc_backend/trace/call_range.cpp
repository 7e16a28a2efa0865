#include "rpc_backend/trace/call_range.h"

#include <unordered_map>

namespace weft::rpc {

namespace {

thread_local CallRange* t_innermost = nullptr;

using Figures = std::unordered_map<std::string, c10::IValue>;

void open(std::optional<at::RecordFunction>& range, const std::string& worker,
          std::string_view function, const Figures& figures) {
  range.emplace(at::RecordScope::USER_SCOPE);
  std::string name = "weft::rpc " + worker;
  if (!function.empty()) name.append(".").append(function);
  range->before(name, &figures);
}

}  // namespace

CallRange::CallRange() : outer_(t_innermost) { t_innermost = this; }
CallRange::~CallRange() { t_innermost = outer_; }

void CallRange::begin(std::optional<CallRange>& own, const std::string& worker,
                      std::string_view function, std::int64_t bytes) {
  if (t_innermost == nullptr || t_innermost->range_) own.emplace();
  open(t_innermost->range_, worker, function, {{"bytes", bytes}});
}

void CallRange::begin(std::optional<at::RecordFunction>& own, const std::string& worker,
                      std::string_view function, std::int64_t bytes, std::int64_t queued_us) {
  open(own, worker, function, {{"bytes", bytes}, {"queue_us", queued_us}});
}

}  // namespace weft::rpc
