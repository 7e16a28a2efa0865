// The names of torch's RPC, and of the standard library, that all of this layer uses.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <chrono>

namespace weft::rpc {

using std::chrono::milliseconds;
using torch::distributed::rpc::DeviceMap;
using torch::distributed::rpc::JitFuture;
using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;
using torch::distributed::rpc::RequestCallback;
using torch::distributed::rpc::RpcAgent;
using torch::distributed::rpc::worker_id_t;
using torch::distributed::rpc::WorkerInfo;

using FuturePtr = c10::intrusive_ptr<JitFuture>;
using MessagePtr = c10::intrusive_ptr<Message>;

}  // namespace weft::rpc
