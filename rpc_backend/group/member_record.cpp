#include "rpc_backend/group/member_record.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "transport/base/parse_number.h"

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

bool allValid(const std::vector<c10::Device>& devices, int count) {
  return std::all_of(devices.begin(), devices.end(), [&](const c10::Device& device) {
    return device.is_cpu() || (device.index() >= 0 && device.index() < count);
  });
}

bool contains(const std::vector<c10::Device>& devices, const c10::Device& device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

bool unique(const std::vector<c10::Device>& devices) {
  return std::unordered_set<c10::Device>(devices.begin(), devices.end()).size() == devices.size();
}

void checkOwnDevices(const MemberRecord& member) {
  TORCH_CHECK_VALUE(unique(member.devices), "Node ", member.name,
                    " has duplicated devices\ndevices = ", member.devices);
  TORCH_CHECK_VALUE(allValid(member.devices, member.device_count), "Node ", member.name,
                    " has devices with invalid indices\ndevices = ", member.devices,
                    "\ndevice count = ", member.device_count);
}

// `devices`: those of a map of `source` that are `member`'s; `side`: "source" or "target".
void checkMapDevices(const MemberRecord& source, const std::vector<c10::Device>& devices,
                     const char* side, const MemberRecord& member, const std::string& where) {
  if (member.devices.empty()) {
    TORCH_CHECK_VALUE(allValid(devices, member.device_count), "Node ", source.name, " has ", side,
                      " devices with invalid indices", where,
                      "\ndevice count = ", member.device_count);
    return;
  }
  TORCH_CHECK_VALUE(
      std::all_of(devices.begin(), devices.end(),
                  [&](const auto& device) { return contains(member.devices, device); }),
      "Node ", source.name, " has unexpected ", side, " devices", where,
      "\ndevices = ", member.devices);
}

void checkOneMap(const MemberRecord& source, const std::string& target_name, const DeviceMap& map,
                 const MemberRecord* target) {
  std::vector<c10::Device> from;
  std::vector<c10::Device> to;
  std::ostringstream shown;
  for (const auto& [here, there] : map) {
    from.push_back(here);
    to.push_back(there);
    shown << ' ' << here << "->" << there;
  }
  const auto where =
      c10::str(" in its device map for ", target_name, "\ndevice map =", shown.str());
  TORCH_CHECK_VALUE(unique(to), "Node ", source.name, " has duplicated target devices", where);
  checkMapDevices(source, from, "source", source, where);
  if (target != nullptr) checkMapDevices(source, to, "target", *target, where);
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

void checkDeviceMaps(const std::vector<MemberRecord>& members, bool is_static) {
  std::map<std::string, const MemberRecord*> by_name;
  std::vector<std::string> names;
  for (const MemberRecord& member : members) {
    checkOwnDevices(member);
    by_name[member.name] = &member;
    names.push_back(member.name);
  }
  std::sort(names.begin(), names.end());
  for (const MemberRecord& source : members) {
    for (const auto& [target_name, map] : source.device_maps) {
      const auto target = by_name.find(target_name);
      TORCH_CHECK_VALUE(!is_static || target != by_name.end(), "Node ", source.name,
                        " has invalid target node names in its device maps\nit names ", target_name,
                        "\nnode names = ", names);
      checkOneMap(source, target_name, map, target == by_name.end() ? nullptr : target->second);
    }
  }
}

DeviceMaps reverseMaps(const std::vector<MemberRecord>& members, const std::string& self) {
  DeviceMaps reverse;
  for (const MemberRecord& member : members) {
    const auto map = member.device_maps.find(self);
    if (map == member.device_maps.end()) continue;
    for (const auto& [from, to] : map->second)
      reverse[member.name].insert_or_assign(to, from);
  }
  return reverse;
}

std::vector<c10::Device> devicesInUse(const std::vector<c10::Device>& given, const DeviceMaps& maps,
                                      const DeviceMaps& reverse) {
  std::vector<c10::Device> devices = given;
  if (devices.empty()) {
    for (const DeviceMaps* side : {&maps, &reverse}) {
      for (const auto& [worker, map] : *side) {
        for (const auto& [device, there] : map) {
          if (!device.is_cpu() && !contains(devices, device)) devices.push_back(device);
        }
      }
    }
  }
  std::sort(devices.begin(), devices.end(),
            [](const c10::Device& a, const c10::Device& b) { return a.index() < b.index(); });
  return devices;
}

}  // namespace weft::rpc
