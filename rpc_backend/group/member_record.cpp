#include "rpc_backend/group/member_record.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <sstream>

namespace weft::rpc {

namespace {

constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 20;

bool toInt(const std::string& text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

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

std::string show(const std::vector<c10::Device>& devices) { return c10::str(devices); }

std::string show(const DeviceMap& map) {
  std::ostringstream out;
  for (const auto& [from, to] : map)
    out << ' ' << from << "->" << to;
  return out.str();
}

bool valid(const c10::Device& device, int count) {
  return device.is_cpu() || (device.index() >= 0 && device.index() < count);
}

template <typename Devices>
bool subset(const Devices& some, const std::vector<c10::Device>& all) {
  return std::all_of(some.begin(), some.end(), [&](const c10::Device& device) {
    return std::find(all.begin(), all.end(), device) != all.end();
  });
}

std::vector<c10::Device> keysOf(const DeviceMap& map) {
  std::vector<c10::Device> keys;
  for (const auto& [from, to] : map)
    keys.push_back(from);
  return keys;
}

std::vector<c10::Device> valuesOf(const DeviceMap& map) {
  std::vector<c10::Device> values;
  for (const auto& [from, to] : map)
    values.push_back(to);
  return values;
}

bool allValid(const std::vector<c10::Device>& devices, int count) {
  return std::all_of(devices.begin(), devices.end(),
                     [&](const c10::Device& device) { return valid(device, count); });
}

void checkOwnDevices(const MemberRecord& member) {
  std::vector<c10::Device> unique;
  for (const c10::Device& device : member.devices) {
    TORCH_CHECK_VALUE(std::find(unique.begin(), unique.end(), device) == unique.end(), "Node ",
                      member.name, " has duplicated devices\ndevices = ", show(member.devices));
    unique.push_back(device);
  }
  TORCH_CHECK_VALUE(allValid(member.devices, member.device_count), "Node ", member.name,
                    " has devices with invalid indices\ndevices = ", show(member.devices),
                    "\ndevice count = ", member.device_count);
}

void checkOneMap(const MemberRecord& source, const std::string& target_name, const DeviceMap& map,
                 const MemberRecord* target) {
  const auto where = c10::str(" in its device map for ", target_name, "\ndevice map =", show(map));
  auto values = valuesOf(map);
  for (std::size_t i = 0; i < values.size(); ++i) {
    TORCH_CHECK_VALUE(std::find(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(i),
                                values[i]) == values.begin() + static_cast<std::ptrdiff_t>(i),
                      "Node ", source.name, " has duplicated target devices", where);
  }
  if (!source.devices.empty()) {
    TORCH_CHECK_VALUE(subset(keysOf(map), source.devices), "Node ", source.name,
                      " has unexpected source devices", where,
                      "\ndevices = ", show(source.devices));
  } else {
    TORCH_CHECK_VALUE(allValid(keysOf(map), source.device_count), "Node ", source.name,
                      " has source devices with invalid indices", where,
                      "\ndevice count = ", source.device_count);
  }
  if (target == nullptr) return;
  if (!target->devices.empty()) {
    TORCH_CHECK_VALUE(subset(values, target->devices), "Node ", source.name,
                      " has unexpected target devices", where,
                      "\ndevices = ", show(target->devices));
  } else {
    TORCH_CHECK_VALUE(allValid(values, target->device_count), "Node ", source.name,
                      " has target devices with invalid indices", where,
                      "\ndevice count = ", target->device_count);
  }
}

}  // namespace

std::string MemberRecord::toText() const {
  std::ostringstream out;
  out << "weft=" << weft << "\nwire=" << wire << "\nrank=" << rank << "\nworld=" << world
      << "\nname=" << name << "\nauth=" << auth << "\nkey_check=" << key_check
      << "\npolicy=" << policy << "\naddress=" << address << "\ndevice_count=" << device_count
      << '\n';
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
    bool good = true;
    if (field == "weft") record.weft = value;
    if (field == "wire") good = toInt(value, record.wire);
    if (field == "rank") good = toInt(value, record.rank);
    if (field == "world") good = toInt(value, record.world);
    if (field == "name") record.name = value;
    if (field == "auth") record.auth = value;
    if (field == "key_check") record.key_check = value;
    if (field == "policy") record.policy = value;
    if (field == "address") record.address = value;
    if (field == "device_count") good = toInt(value, record.device_count);
    if (field == "device") {
      const auto device = toDevice(value);
      good = device.has_value();
      if (device) record.devices.push_back(*device);
    }
    if (field.starts_with("map.")) good = toMap(value, record.device_maps[field.substr(4)]);
    if (!good) return std::nullopt;
  }
  if (record.name.empty() || record.rank < 0 || record.weft.empty()) return std::nullopt;
  return record;
}

void checkDeviceMaps(const std::vector<MemberRecord>& members, bool is_static) {
  std::map<std::string, const MemberRecord*> by_name;
  for (const MemberRecord& member : members)
    by_name[member.name] = &member;
  for (const MemberRecord& member : members)
    checkOwnDevices(member);
  for (const MemberRecord& source : members) {
    for (const auto& [target_name, map] : source.device_maps) {
      const auto target = by_name.find(target_name);
      std::vector<std::string> names;
      for (const auto& [name, member] : by_name)
        names.push_back(name);
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
        for (const c10::Device& device : keysOf(map)) {
          const bool known = std::find(devices.begin(), devices.end(), device) != devices.end();
          if (!device.is_cpu() && !known) devices.push_back(device);
        }
      }
    }
  }
  std::sort(devices.begin(), devices.end(),
            [](const c10::Device& a, const c10::Device& b) { return a.index() < b.index(); });
  return devices;
}

}  // namespace weft::rpc
