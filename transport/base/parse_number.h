// A number from text that may be anything.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace weft::transport {

// Nothing where the text is not a number of that type and nothing else.
template <typename Number>
std::optional<Number> parseNumber(std::string_view text) noexcept {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace weft::transport
