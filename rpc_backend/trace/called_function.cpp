#include "rpc_backend/trace/called_function.h"

#include <algorithm>
#include <optional>

#include "rpc_backend/wire/pickle_reader.h"

namespace weft::rpc {

namespace {

constexpr std::size_t kSearched = 512;  // bytes of a payload, at the end that has the name

// The string that a pickle has next, behind marks of its memo.
std::optional<std::string_view> nextString(std::string_view& pickled) {
  const auto at = pickled.find(static_cast<char>(pickle::kShortBinUnicode));
  constexpr std::size_t kMarks = 8;
  if (at > kMarks || at + 2 > pickled.size()) return std::nullopt;
  const auto size = static_cast<unsigned char>(pickled[at + 1]);
  const std::string_view text = pickled.substr(at + 2, size);
  pickled.remove_prefix(std::min(pickled.size(), at + 2 + size));
  return text;
}

// torch pickles its PythonUDF, whose first field is the function: its module and its name.
std::string_view pythonFunction(std::string_view payload) {
  constexpr std::string_view kBefore = "PythonUDF";
  payload = payload.substr(0, kSearched);
  const auto at = payload.find(kBefore);
  if (at == std::string_view::npos) return {};
  payload.remove_prefix(at + kBefore.size());
  const auto module = nextString(payload);
  return module ? nextString(payload).value_or("") : "";
}

// An operator or a TorchScript function is the last string of its message, with dots in its name.
std::string_view scriptFunction(std::string_view payload) {
  if (payload.size() > kSearched) payload.remove_prefix(payload.size() - kSearched);
  for (const std::string_view before : {"torch.ops.", "__torch__."}) {
    const auto at = payload.rfind(before);
    if (at == std::string_view::npos) continue;
    // Before it is its length, of four bytes: these names are shorter than 256.
    constexpr std::size_t kLength = 4;
    const std::size_t size = at < kLength ? 0 : static_cast<unsigned char>(payload[at - kLength]);
    const std::string_view whole = payload.substr(at, size);
    return whole.substr(whole.rfind('.') + 1);
  }
  return {};
}

}  // namespace

std::string_view functionOf(MessageType type, std::span<const char> payload) {
  const std::string_view text(payload.data(), payload.size());
  switch (type) {
    case MessageType::PYTHON_CALL:
    case MessageType::PYTHON_REMOTE_CALL:
      return pythonFunction(text);
    case MessageType::SCRIPT_CALL:
    case MessageType::SCRIPT_REMOTE_CALL:
      return scriptFunction(text);
    case MessageType::SCRIPT_RREF_FETCH_CALL:
    case MessageType::PYTHON_RREF_FETCH_CALL:
      return "to_here";
    default:
      return {};
  }
}

}  // namespace weft::rpc
