#include "rpc_backend/join/member_record.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "transport/base/parse_number.h"
#include "transport/base/peer_name.h"
#include "transport/io/socket.h"

namespace weft::rpc {

namespace {

constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 20;
constexpr const char* kEndOfRecord = ".";  // a line

constexpr std::pair<const char*, std::string MemberRecord::*> kTexts[] = {
    {"weft", &MemberRecord::weft},     {"name", &MemberRecord::name},
    {"auth", &MemberRecord::auth},     {"key_check", &MemberRecord::key_check},
    {"policy", &MemberRecord::policy}, {"address", &MemberRecord::address}};
constexpr std::pair<const char*, int MemberRecord::*> kNumbers[] = {
    {"wire", &MemberRecord::wire},
    {"rank", &MemberRecord::rank},
    {"world", &MemberRecord::world},
    {"device_count", &MemberRecord::device_count}};

std::optional<c10::Device> toDevice(const std::string& text) {
  if (text.empty() || text.size() > 32) return std::nullopt;
  try {
    return c10::Device(text);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);)
    parts.push_back(part);
  return parts;
}

// "cuda:0>cuda:1,cuda:1>cuda:0"
bool toMap(const std::string& text, DeviceMap& map) {
  for (const std::string& pair : split(text, ',')) {
    const auto ends = split(pair, '>');
    if (ends.size() != 2) return false;
    const auto from = toDevice(ends[0]);
    const auto to = toDevice(ends[1]);
    if (!from || !to) return false;
    map.insert_or_assign(*from, *to);
  }
  return true;
}

}  // namespace

std::string MemberRecord::toText() const {
  std::ostringstream out;
  for (const auto& [field, value] : kTexts)
    out << field << '=' << this->*value << '\n';
  for (const auto& [field, value] : kNumbers)
    out << field << '=' << this->*value << '\n';
  for (const c10::Device& device : devices)
    out << "device=" << device << '\n';
  for (const auto& [worker, map] : device_maps) {
    out << "map." << worker << '=';
    const char* separator = "";
    for (const auto& [from, to] : map) {
      out << separator << from << '>' << to;
      separator = ",";
    }
    out << '\n';
  }
  return out.str();
}

std::optional<MemberRecord> MemberRecord::fromText(const std::string& text) {
  if (text.size() > kMaxRecordBytes) return std::nullopt;
  MemberRecord record;
  record.weft.clear();
  record.wire = 0;
  for (const std::string& line : split(text, '\n')) {
    const auto equals = line.find('=');
    if (equals == std::string::npos) return std::nullopt;
    const std::string field = line.substr(0, equals);
    const std::string value = line.substr(equals + 1);
    for (const auto& [name, member] : kTexts) {
      if (field == name) record.*member = value;
    }
    for (const auto& [name, member] : kNumbers) {
      if (field != name) continue;
      const auto number = transport::parseNumber<int>(value);
      if (!number) return std::nullopt;
      record.*member = *number;
    }
    if (field == "device") {
      const auto device = toDevice(value);
      if (!device) return std::nullopt;
      record.devices.push_back(*device);
    }
    if (field.starts_with("map.") && !toMap(value, record.device_maps[field.substr(4)])) {
      return std::nullopt;
    }
  }
  if (record.name.empty() || record.weft.empty() || record.rank < 0 ||
      record.rank > std::numeric_limits<worker_id_t>::max()) {
    return std::nullopt;
  }
  return record;
}

std::string toText(const std::vector<MemberRecord>& members) {
  std::string text = std::string(kEndOfRecord) + "\n";
  for (const MemberRecord& member : members)
    text += member.toText() + kEndOfRecord + "\n";
  return text;
}

std::vector<MemberRecord> parseMembers(const std::string& text, const std::string& who) {
  std::vector<MemberRecord> members;
  std::istringstream lines(text);
  std::string record;
  for (std::string line; std::getline(lines, line);) {
    if (line != kEndOfRecord) {
      record += line + "\n";
    } else if (!record.empty()) {
      const auto member = MemberRecord::fromText(std::exchange(record, {}));
      TORCH_CHECK(member, who, ": the Store's list of the group's workers is malformed");
      members.push_back(*member);
    }
  }
  TORCH_CHECK(record.empty(), who, ": the Store's list of the group's workers is malformed");
  return members;
}

bool isReadable(const MemberRecord& record) {
  const std::string text = "\n" + record.toText();
  const std::string end = std::string("\n") + kEndOfRecord + "\n";
  return MemberRecord::fromText(record.toText()) && text.find(end) == std::string::npos;
}

// One record that others cannot read would break a dynamic group's list for all of them.
void checkReadable(const MemberRecord& self, const std::string& who) {
  TORCH_CHECK_VALUE(
      isReadable(self), who,
      ": the other workers could not read its record; look at the worker names in its device maps");
}

bool isAlive(const MemberRecord& member) {
  return transport::somebodyListens(member.address, std::chrono::seconds(1));
}

// Every worker reports the first pair that does not fit, in the same words.
void checkMembers(const MemberRecord& self, std::vector<MemberRecord> all) {
  all.push_back(self);
  std::sort(all.begin(), all.end(),
            [](const MemberRecord& a, const MemberRecord& b) { return a.rank < b.rank; });
  const MemberRecord& first = all.front();
  std::unordered_map<std::string, std::int32_t> ranks{{first.name, first.rank}};
  for (std::size_t i = 1; i < all.size(); ++i) {
    const MemberRecord& other = all[i];
    const auto who = [&] {
      return transport::describePeer(other.name, other.rank) + " and " +
             transport::describePeer(first.name, first.rank);
    };
    const auto [namesake, is_new] = ranks.emplace(other.name, other.rank);
    TORCH_CHECK(is_new, "RPC worker name '", other.name, "' is not unique. Workers of rank ",
                namesake->second, " and ", other.rank,
                " have the same name; give every worker a name of its own.");
    TORCH_CHECK(other.wire == first.wire, who(), " speak different versions of Weft's protocol (",
                other.weft, " with ", other.wire, ", ", first.weft, " with ", first.wire,
                "); install the same Weft on all");
    TORCH_CHECK(other.world == first.world, who(), " were started with different world_size (",
                other.world, " and ", first.world, "); give all workers the same");
    TORCH_CHECK(other.auth == first.auth, who(), " take the group's key from different places (",
                other.auth, " and ", first.auth,
                "); set WEFT_AUTH_KEY_FILE on all workers or on none");
    TORCH_CHECK(other.key_check == first.key_check, who(),
                " have different keys in their key files; give all workers the same file");
  }
}

}  // namespace weft::rpc
