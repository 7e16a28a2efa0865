// Record: what a process tells the others through a Store, as text of lines `field=value`. The
// Store is open to all who can reach it, so the reader is total: any text gives a record or
// nothing, its size is bounded, and unknown fields are kept but ignored.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace weft::collectives {

class Record {
 public:
  // A line break in a value becomes a space.
  Record& set(const std::string& field, std::string value);
  Record& set(const std::string& field, std::uint64_t value);

  // "" where the record has no such field.
  std::string text(const std::string& field) const;
  // Nothing where the record has no such field, or it is no number.
  std::optional<std::uint64_t> number(const std::string& field) const;

  std::string toText() const;
  static std::optional<Record> fromText(const std::string& text);

 private:
  std::map<std::string, std::string> fields_;
};

}  // namespace weft::collectives
