// What a worker tells the others about itself through the Store, as lines `field=value`. Anybody
// who reaches the Store may write to it, so the reader is total: sizes are bounded, unknown fields
// are skipped, and nothing is executed or unpickled.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rpc_backend/options/options.h"
#include "rpc_backend/wire/wire.h"

namespace weft::rpc {

inline constexpr const char* kWeftVersion = "0.1.0";

struct MemberRecord {
  std::string weft = kWeftVersion;
  int wire = kWireVersion;  // must be the same on all
  std::int32_t rank = -1;
  int world = 0;  // 0: dynamic group
  std::string name;
  std::string auth;       // "file" or "store": where the key came from
  std::string key_check;  // of a key from a file: transport::keyCheck
  std::string policy;     // its request policy
  std::string address;    // transport::Endpoint::address()
  int device_count = 0;   // accelerators on that worker
  std::vector<c10::Device> devices;
  DeviceMaps device_maps;

  std::string toText() const;
  // Nothing when the text is not a record.
  static std::optional<MemberRecord> fromText(const std::string& text);
};

// The list of a group's workers in the Store, under this key. Its text is never empty, not even
// without members.
inline constexpr const char* kMembersKey = "members";
std::string toText(const std::vector<MemberRecord>& members);
// Throws c10::Error, which names `who` reads, for a text that is no such list.
std::vector<MemberRecord> parseMembers(const std::string& text, const std::string& who);
// Whether others can read a list that has this record in it.
bool isReadable(const MemberRecord& record);
// Throws c10::ValueError if they cannot.
void checkReadable(const MemberRecord& self, const std::string& who);
// Whether the worker still listens. Takes 1 s where nothing answers.
bool isAlive(const MemberRecord& member);
// Throws c10::Error if the names, versions, world sizes or keys of these workers do not fit.
void checkMembers(const MemberRecord& self, std::vector<MemberRecord> all);

}  // namespace weft::rpc
