#include "rpc_backend/serve/error_text.h"

#include <torch/csrc/utils/cpp_stacktraces.h>

#include <sstream>
#include <string_view>

namespace weft::rpc {

namespace {

// The line that c10::Error writes before its frames.
bool beginsStack(std::string_view line) {
  return line.starts_with("Exception raised from ") && line.ends_with(" (most recent call first):");
}

}  // namespace

std::string withoutStack(const std::string& text) {
  if (text.find("\nframe #") == std::string::npos) return text;
  if (torch::get_cpp_stacktraces_enabled()) return text;
  std::istringstream lines(text);
  std::string kept;
  bool in_stack = false;
  for (std::string line; std::getline(lines, line);) {
    in_stack = beginsStack(line) || (in_stack && line.starts_with("frame #"));
    if (in_stack) continue;
    kept += line;
    kept += '\n';
  }
  // c10 ends a text with line breaks of its own.
  kept.erase(kept.find_last_not_of('\n') + 1);
  return kept;
}

}  // namespace weft::rpc
