// What follows for a group from the devices and device maps in its workers' records.
//
// Pure functions; any thread.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "rpc_backend/join/member_record.h"

namespace weft::rpc {

// Upstream's rules for device maps, checked on every worker over all records: throws
// c10::ValueError with upstream's wording. A dynamic group may name workers yet to come.
void checkDeviceMaps(const std::vector<MemberRecord>& members, bool is_static);
// For each member whose map names `self`: its map turned round.
DeviceMaps reverseMaps(const std::vector<MemberRecord>& members, const std::string& self);
// The devices given, or all accelerators that the maps name on this worker; ordered.
std::vector<c10::Device> devicesInUse(const std::vector<c10::Device>& given, const DeviceMaps& maps,
                                      const DeviceMaps& reverse);

}  // namespace weft::rpc
