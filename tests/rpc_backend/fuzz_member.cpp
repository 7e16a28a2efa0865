// libFuzzer: what a worker tells the others of itself through the Store, the list of all workers
// there, and the token of a loan of CUDA memory. Any text gives a record or nothing, whose device
// maps are checked by name; any text gives a list of workers or an error; any bytes give a token
// whose indices are right, or an error. What is read is written the same.
#include <c10/util/Exception.h>

#include <vector>

#include "rpc_backend/cuda/ipc_token.h"
#include "rpc_backend/group/device_map_rules.h"
#include "rpc_backend/join/member_record.h"
#include "tests/support/fuzz_input.h"

namespace {

using namespace weft::rpc;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;

void readMembers(FuzzInput& input) {
  std::vector<MemberRecord> members;
  while (!input.empty() && members.size() < 4) {
    const auto record = MemberRecord::fromText(input.text(input.number<std::uint16_t>() % 512));
    if (!record) continue;
    const std::string written = record->toText();
    const auto again = MemberRecord::fromText(written);
    require(again.has_value() && again->toText() == written);
    members.push_back(*record);
  }
  try {
    checkDeviceMaps(members, input.oneIn(2));
    for (const MemberRecord& member : members) {
      const DeviceMaps reverse = reverseMaps(members, member.name);
      static_cast<void>(devicesInUse(member.devices, member.device_maps, reverse));
    }
  } catch (const c10::Error&) {
  }
}

void readList(FuzzInput& input) {
  const std::string prefix = input.oneIn(2) ? ".\n" : "";
  const std::string text = prefix + input.text(input.number<std::uint16_t>());
  try {
    const std::vector<MemberRecord> members = parseMembers(text, "the fuzzer");
    bool readable = true;
    for (const MemberRecord& member : members) {
      require(!member.name.empty() && member.rank >= 0);
      readable = readable && isReadable(member);
    }
    const std::string written = toText(members);
    if (readable) require(toText(parseMembers(written, "the fuzzer")) == written);
  } catch (const c10::Error&) {
  }
}

void readToken(FuzzInput& input, std::size_t size) {
  const auto bytes = input.bytes(size);
  try {
    const IpcToken token = IpcToken::fromBytes(bytes);
    for (const IpcToken::Segment& segment : token.segments)
      require(segment.device < token.devices.size());
    for (const IpcToken::Place& place : token.places)
      require(place.segment < token.segments.size());
    const std::vector<std::byte> written = token.toBytes();
    require(written.size() <= size && std::equal(written.begin(), written.end(), bytes.begin()));
  } catch (const c10::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  switch (input.below(4)) {
    case 0:
    case 2:
      readMembers(input);
      break;
    case 1:
      readToken(input, size);
      break;
    default:
      readList(input);
  }
  return 0;
}
