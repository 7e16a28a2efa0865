#include "c10d_plugin/store/record.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "transport/base/parse_number.h"

namespace weft::collectives {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

}  // namespace

Record& Record::set(const std::string& field, std::string value) {
  std::replace(value.begin(), value.end(), '\n', ' ');
  fields_[field] = std::move(value);
  return *this;
}

Record& Record::set(const std::string& field, std::uint64_t value) {
  return set(field, std::to_string(value));
}

std::string Record::text(const std::string& field) const {
  const auto found = fields_.find(field);
  return found == fields_.end() ? std::string() : found->second;
}

std::optional<std::uint64_t> Record::number(const std::string& field) const {
  return transport::parseNumber<std::uint64_t>(text(field));
}

std::string Record::toText() const {
  std::string text;
  for (const auto& [field, value] : fields_)
    text.append(field).append("=").append(value).append("\n");
  return text;
}

std::optional<Record> Record::fromText(const std::string& text) {
  if (text.size() > kMaxBytes) return std::nullopt;
  Record record;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) return std::nullopt;
    record.fields_[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return record;
}

}  // namespace weft::collectives
