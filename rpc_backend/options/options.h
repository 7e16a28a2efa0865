// What a user may set on a Weft agent. Python's weft.RpcBackendOptions is a thin
// subclass of this; C++ programs fill it in directly. Plain data, no thread rules.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/options/request_policy.h"
#include "transport/base/api.h"

namespace weft::rpc {

inline milliseconds fromSeconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}
// Multiplies as torch does: 0.7F, which is less than 0.7, is 700 ms.
inline milliseconds fromSeconds(float seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

using DeviceMaps = std::unordered_map<std::string, DeviceMap>;

// Where `device` (of this process) lands on `peer`. CPU maps to CPU unless the map says
// otherwise. Throws c10::Error for an accelerator that the map does not name.
c10::Device mapDevice(c10::Device device, const DeviceMap& map, const std::string& peer);

// A timeout as torch's interface gives it: 0 is no limit. Throws c10::ValueError for a value that
// is neither a time nor that.
milliseconds toTimeout(float seconds);
// Seconds. A clock can count so far; nobody notices the difference from "infinity".
inline constexpr float kLongestTimeout = 1e9F;

struct WEFT_API WeftRpcBackendOptions : torch::distributed::rpc::RpcBackendOptions {
  WeftRpcBackendOptions();
  WeftRpcBackendOptions(float rpc_timeout, std::string init_method);

  int num_worker_threads = 16;       // threads that run requests, at most
  DeviceMaps device_maps;            // worker name -> {device here: device there}
  std::vector<c10::Device> devices;  // accelerators in use; empty: those of the maps
  // In seconds; by default as WEFT_HEARTBEAT_INTERVAL, WEFT_PEER_TIMEOUT and WEFT_RECONNECT_TIMEOUT
  // say (environment.md). The constructor throws c10::ValueError where one of them is no time.
  double heartbeat_interval;
  double peer_timeout;  // of silence after which a peer is lost
  // What a broken connection may take to be made again before its peer is lost, at most
  // peer_timeout; 0: a broken connection is a lost peer.
  double reconnect_timeout;
  std::uint64_t max_message_bytes = mostByDefault();
  // Bytes of requests from one peer that wait or run here; a request beyond is refused.
  std::uint64_t max_inflight_bytes = mostByDefault();
  // Calls to one peer that wait for their answers; the next waits for room. 0: no limit.
  std::int64_t max_calls_in_flight = 0;
  std::string auth_key_file;  // "": WEFT_AUTH_KEY_FILE, else a key through the Store
  std::string interface;      // "": WEFT_SOCKET_IFNAME, else the route to the master
  std::string master_host;    // the host whose route decides the interface; may be ""
  RequestPolicy request_policy = RequestPolicy::kAny;

  // Throws c10::Error that names the option, its value and what is allowed.
  void check() const;
  // 64 GiB, or half of the machine's memory where that is less: a peer must not take all of it.
  static std::uint64_t mostByDefault();
};

}  // namespace weft::rpc
