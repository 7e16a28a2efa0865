#include "jit_ops/cpp_api/rendezvous.h"

#include <c10/util/Exception.h>

#include <string_view>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "transport/base/environment.h"
#include "transport/base/parse_number.h"

namespace weft::ops {

namespace {

constexpr std::string_view kEnv = "env://";
constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";

int toInt(std::string_view text, const std::string& what) {
  const auto value = transport::parseNumber<int>(text);
  TORCH_CHECK(value, what, " must be a number, got '", text, "'");
  return *value;
}

struct HostPort {
  std::string host;
  std::string port;
};

// "host:port" or "[v6]:port", what may follow from / or ? on left out.
HostPort parse(std::string_view text) {
  text = text.substr(0, text.find_first_of("/?"));
  const auto colon = text.rfind(':');
  TORCH_CHECK(colon != std::string_view::npos,
              "init_method must be \"tcp://host:port\", got \"tcp://", text, "\"");
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {std::string(host), std::string(text.substr(colon + 1))};
}

HostPort master(const std::string& init_method) {
  if (init_method.starts_with(kEnv))
    return {environment::value("MASTER_ADDR"), environment::value("MASTER_PORT")};
  if (init_method.starts_with(kTcp))
    return parse(std::string_view(init_method).substr(kTcp.size()));
  return {};
}

}  // namespace

void fillFromEnvironment(JoinOptions& options, bool may_be_dynamic) {
  const bool env = !options.store && options.init_method.starts_with(kEnv);
  if (options.rpc.master_host.empty()) options.rpc.master_host = master(options.init_method).host;
  if (options.rank < 0) {
    const std::string rank = environment::value("RANK");
    TORCH_CHECK(!rank.empty(), "no rank is given: set `rank` of the options, or RANK");
    options.rank = toInt(rank, "RANK");
  }
  if ((env || !may_be_dynamic) && !options.world_size) {
    if (const std::string size = environment::value("WORLD_SIZE"); !size.empty())
      options.world_size = toInt(size, "WORLD_SIZE");
  }
  TORCH_CHECK(options.rank >= 0, "rank must not be negative, got ", options.rank);
  TORCH_CHECK(options.world_size.value_or(1) > 0, "world_size must be positive, got ",
              options.world_size.value_or(0));
  TORCH_CHECK(!options.world_size || options.rank < *options.world_size, "rank ", options.rank,
              " is out of range for world_size ", options.world_size.value_or(0));
}

std::chrono::milliseconds storeTimeout(const JoinOptions& options) {
  const float seconds = options.rpc.rpcTimeoutSeconds;
  return rpc::toTimeout(seconds > 0 ? seconds : torch::distributed::rpc::kDefaultRpcTimeoutSeconds);
}

c10::intrusive_ptr<c10d::Store> openStore(const JoinOptions& options) {
  const std::string& method = options.init_method;
  if (method.starts_with(kFile)) {
    const std::string path = method.substr(kFile.size());
    return c10::make_intrusive<c10d::FileStore>(path.substr(0, path.find('?')),
                                                options.world_size.value_or(-1));
  }
  TORCH_CHECK(method.starts_with(kEnv) || method.starts_with(kTcp),
              "init_method must begin with env://, tcp:// or file://, got \"", method, "\"");
  const HostPort where = master(method);
  TORCH_CHECK(!where.host.empty() && !where.port.empty(),
              "MASTER_ADDR and MASTER_PORT must be set for env://");
  c10d::TCPStoreOptions store;
  const auto port = transport::parseNumber<std::uint16_t>(where.port);
  TORCH_CHECK(port, "the master's port must be a number from 0 to 65535, got '", where.port, "'");
  store.port = *port;
  store.isServer = options.rank == 0;
  // Joining waits for the others and names the missing ones, so rank 0's store need not wait. The
  // others must be counted at the store, because a rank 0 in Python waits there for all; that does
  // not block them.
  store.waitWorkers = !store.isServer && options.world_size.has_value();
  if (store.waitWorkers) store.numWorkers = static_cast<std::size_t>(*options.world_size);
  store.multiTenant = true;
  store.timeout = storeTimeout(options);
  return c10::make_intrusive<c10d::TCPStore>(where.host, store);
}

}  // namespace weft::ops
