// MessageSender: encodes an agent's messages and sends them through its endpoint, which it owns.
//
// Threads: any, after open(). Memory that is sent may belong to a Python object, whose release
// takes the GIL and may run a destructor that waits for the loop thread. So a dropper releases it,
// never the loop thread. Failure: an error means that nothing was or will be sent; encode() may
// throw c10::Error. In both cases device memory that the message was to lend is taken back.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "rpc_backend/codec/device_transfer.h"
#include "rpc_backend/codec/incoming_message.h"
#include "rpc_backend/codec/message_codec.h"
#include "rpc_backend/threads/agent_context.h"
#include "transport/endpoint.h"

namespace weft::rpc {

class MessageSender {
 public:
  explicit MessageSender(AgentContext& context) : context_(context), devices_(context, *this) {}

  // Listens. Throws c10::Error. `handler` must outlive close().
  void open(transport::EndpointOptions options, transport::EndpointHandler& handler);
  // Instead of open(), for tests: takes an endpoint that has its handler.
  void use(std::shared_ptr<transport::Endpoint> endpoint) { endpoint_ = std::move(endpoint); }
  // Null before open().
  const std::shared_ptr<transport::Endpoint>& endpoint() const noexcept { return endpoint_; }
  DeviceTransfer& devices() noexcept { return devices_; }
  // The link to that worker: "unix" or "tcp"; "": there is none.
  std::string transportTo(worker_id_t peer) const;
  // Waits a moment until device memory has been read, and another until what is queued is written,
  // unless the context is hurried; then ends the loop thread. Idempotent.
  void close();

  // How long a thread waits for room in a worker's queue, unless it says otherwise. The loop thread
  // does not wait.
  static constexpr milliseconds kRoomWait{30000};
  // `call_timeout`: how long the caller of a request still waits for the answer; 0: for ever.
  transport::Error send(worker_id_t to, WireKind kind, std::uint64_t call_id,
                        const MessagePtr& message, const DeviceMap& map, const std::string& peer,
                        milliseconds call_timeout = milliseconds(0),
                        milliseconds room_wait = kRoomWait);
  transport::Error sendControl(worker_id_t to, WireKind kind, ControlType type,
                               std::uint64_t call_id, const std::string& text,
                               milliseconds room_wait = kRoomWait);

  // What the endpoint has sent and received, for getMetrics(). Nothing before open().
  void addMetrics(std::unordered_map<std::string, std::string>& out) const;

  // Runs `task` on a completer after `delay`.
  void runOnCompleterAfter(milliseconds delay, std::function<void()> task);

 private:
  AgentContext& context_;
  std::shared_ptr<transport::Endpoint> endpoint_;
  DeviceTransfer devices_;
};

}  // namespace weft::rpc
