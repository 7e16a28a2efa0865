#include "rpc_backend/options/env.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>

#include "rpc_backend/core/log.h"
#include "transport/base/environment.h"

namespace weft::rpc::env {

namespace {

using namespace environment;  // NOLINT(google-build-using-namespace): the names below

constexpr std::array kTable{
    Variable{kAuthKeyFile, "",
             "file with the group's key (64 hexadecimal digits, mode 0600); unset: the first "
             "worker makes a random key and shares it through the Store"},
    Variable{
        kEncryption, "auto",
        "auto, on or off: TLS 1.3 on TCP connections; auto: between hosts, where there is a key "
        "file or certificates; on: within a host, too. Alike on all workers"},
    Variable{kTlsCert, "",
             "PEM file with this worker's certificate, which must have its name, and the chain; "
             "with WEFT_TLS_KEY and WEFT_TLS_CA"},
    Variable{kTlsKey, "", "PEM file with the certificate's private key, mode 0600"},
    Variable{kTlsCa, "", "PEM file with the authorities that sign the workers' certificates"},
    Variable{kSocketIfname, "",
             "interface name or numeric address to listen on; unset: the one that reaches the "
             "master"},
    Variable{kLogLevel, "warning", "error, warning, info or debug"},
    Variable{kHangReport, "60",
             "seconds after which a worker logs what a call or a collective waits for; 0: never"},
    Variable{kMetrics, "",
             "host:port at which a worker serves its figures as Prometheus text, once it has "
             "joined; port 0: any free one, which is logged at info"},
    Variable{kAsDefault, "0",
             "1: importing Weft makes it the default backend of init_rpc and translates "
             "TensorPipeRpcBackendOptions"},
    Variable{kAsProcessGroup, "0",
             "1: importing Weft makes gloo mean weft in init_process_group and new_group (weft.run "
             "--process-group sets it)"},
    Variable{kRequestPolicy, "any",
             "any, registered or script: what peers may ask of this process, when the options do "
             "not say"},
    Variable{kHeartbeatInterval, "1",
             "seconds between heartbeats to an idle peer, when the options do not say"},
    Variable{kPeerTimeout, "5",
             "seconds of silence after which a peer is lost, when the options do not say"},
    Variable{kReconnectTimeout, "5",
             "seconds that a broken connection may take to be made again, when the options do not "
             "say; 0: a broken connection is a lost peer"},
    Variable{kUnixSocket, "1", "0: never use Unix sockets, not even between processes of one host"},
    Variable{kOtherUsers, "0",
             "1: Unix sockets connect processes of different users of a host too, if they pass the "
             "handshake; give it to all workers of the host. Otherwise these use TCP"},
    Variable{kSharedMemory, "1",
             "0: nothing between processes of one host goes through shared memory: large tensors "
             "through the socket, collectives as messages"},
    Variable{kTcpConnections, "2",
             "connections to a peer on another host that share its large messages; 1: one, as for "
             "small ones"},
    // Read by ./dev and the tests only; named here so that they raise no warning.
    Variable{"WEFT_TORCH", "2.11.0", "./dev: the torch version to build and test against"},
    Variable{"WEFT_CACHE", "~/.cache/weft", "./dev: where venvs and build caches are kept"},
    Variable{"WEFT_PYTHON", "", "build: the interpreter that is asked where torch is"},
    Variable{"WEFT_BASE_PYTHON", "python3", "./dev: the interpreter the venv is made from"},
    Variable{"WEFT_LIBUV_SRC", "", "build: the unpacked libuv source"},
    Variable{"WEFT_TEST_MINUTES", "",
             "./dev test: how long it may take; a part that may last longer is skipped and named"},
    Variable{"WEFT_TEST_BACKEND", "WEFT", "tests: the backend that the examples' tests use"},
    Variable{"WEFT_TEST_SEED", "", "tests: the seed with which random ones begin"},
    Variable{"WEFT_TEST_CASES", "", "tests: how many cases a random one tries"},
    Variable{"WEFT_TEST_KIND", "", "tests: the one kind of cases that random collectives try"},
};

}  // namespace

std::span<const Variable> table() { return kTable; }

std::vector<std::string> unknownNames() {
  std::vector<std::string> unknown;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool known = std::any_of(kTable.begin(), kTable.end(),
                                   [&](const Variable& v) { return name == v.name; });
    if (name.starts_with("WEFT_") && !known) unknown.emplace_back(name);
  }
  return unknown;
}

void warnAboutUnknownOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const std::string& name : unknownNames()) {
      logWarning("the environment variable " + name +
                 " is not one that Weft knows; `python -m weft.doctor` lists them");
    }
  });
}

}  // namespace weft::rpc::env
