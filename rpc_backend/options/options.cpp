#include "rpc_backend/options/options.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "transport/base/environment.h"
#include "transport/base/parse_number.h"
#include "transport/memory/pages.h"

namespace weft::rpc {

namespace {

double secondsFrom(const char* variable, double otherwise) {
  const std::string text = environment::value(variable);
  if (text.empty()) return otherwise;
  const auto seconds = transport::parseNumber<double>(text);
  TORCH_CHECK_VALUE(seconds, variable, " must be a number of seconds, got '", text, "'");
  TORCH_CHECK_VALUE(*seconds >= 0 && std::isfinite(*seconds), variable,
                    " must not be negative or infinite, got ", text);
  return *seconds;
}

}  // namespace

WeftRpcBackendOptions::WeftRpcBackendOptions()
    : WeftRpcBackendOptions(torch::distributed::rpc::kDefaultRpcTimeoutSeconds,
                            torch::distributed::rpc::kDefaultInitMethod) {}

WeftRpcBackendOptions::WeftRpcBackendOptions(float rpc_timeout, std::string init_method)
    : RpcBackendOptions(rpc_timeout, std::move(init_method)),
      heartbeat_interval(secondsFrom(environment::kHeartbeatInterval, 1.0)),
      peer_timeout(secondsFrom(environment::kPeerTimeout, 5.0)),
      reconnect_timeout(secondsFrom(environment::kReconnectTimeout, std::min(5.0, peer_timeout))) {}

c10::Device mapDevice(c10::Device device, const DeviceMap& map, const std::string& peer) {
  const auto found = map.find(device);
  if (found != map.end()) return found->second;
  TORCH_CHECK(device.is_cpu(), "weft: a tensor on ", device, " was to be sent to worker '", peer,
              "', but the device map for that worker does not name ", device,
              ". Move the tensor to CPU first, or call set_device_map('", peer, "', {'", device,
              "': <device there>}) on the RpcBackendOptions given to init_rpc.");
  return c10::Device(c10::kCPU);
}

milliseconds toTimeout(float seconds) {
  TORCH_CHECK_VALUE(seconds >= 0, "timeout must be a number of seconds that is not negative, got ",
                    seconds);
  // Rounded up: the shortest time is not "no limit".
  return seconds == 0 ? milliseconds(0)
                      : std::max(fromSeconds(std::min(seconds, kLongestTimeout)), milliseconds(1));
}

std::uint64_t WeftRpcBackendOptions::mostByDefault() {
  return transport::atMostHalf(std::uint64_t{64} << 30);
}

void WeftRpcBackendOptions::check() const {
  TORCH_CHECK(num_worker_threads > 0, "num_worker_threads must be positive, got ",
              num_worker_threads);
  TORCH_CHECK(rpcTimeoutSeconds >= 0, "rpc_timeout must not be negative, got ", rpcTimeoutSeconds);
  TORCH_CHECK(heartbeat_interval > 0, "heartbeat_interval must be positive, got ",
              heartbeat_interval, " s");
  TORCH_CHECK(peer_timeout >= 2 * heartbeat_interval, "peer_timeout (", peer_timeout,
              " s) must be at least twice heartbeat_interval (", heartbeat_interval,
              " s): a peer must not be declared lost for one heartbeat that came late");
  TORCH_CHECK(reconnect_timeout >= 0, "reconnect_timeout must not be negative, got ",
              reconnect_timeout, " s; 0 means that a broken connection is a lost peer");
  TORCH_CHECK(reconnect_timeout <= peer_timeout, "reconnect_timeout (", reconnect_timeout,
              " s) must be at most peer_timeout (", peer_timeout,
              " s), after which the peer is lost all the same");
  TORCH_CHECK(max_message_bytes > 0, "max_message_bytes must be positive, got ", max_message_bytes);
  TORCH_CHECK(max_inflight_bytes > 0, "max_inflight_bytes must be positive, got ",
              max_inflight_bytes);
  TORCH_CHECK(max_calls_in_flight >= 0, "max_calls_in_flight must not be negative, got ",
              max_calls_in_flight);
}

}  // namespace weft::rpc
