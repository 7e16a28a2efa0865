#include "rpc_backend/group/device_map_rules.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <unordered_set>

namespace weft::rpc {

namespace {

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
