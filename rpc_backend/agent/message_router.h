// MessageRouter: gives each message that the endpoint reads to the part of the agent that it is
// for: requests to the server, answers to the client, control messages to the group.
//
// Threads: the loop thread only. Nothing here blocks or runs user code.
// Failure: a malformed message closes the connection to its sender. A message that is too large, or
// for which there is no memory, fails only its call.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc_backend/call/request_client.h"
#include "rpc_backend/serve/request_server.h"
#include "transport/endpoint.h"
#include "transport/memory/warm_pool.h"

namespace weft::rpc {

class MessageRouter : public transport::EndpointHandler {
 public:
  // `receive_pool`: memory for large tensors; may be null.
  MessageRouter(AgentContext& context, MessageSender& sender, Group& group, RRefService& rrefs,
                RequestClient& client, RequestServer& server, transport::WarmPool* receive_pool)
      : context_(context),
        sender_(sender),
        group_(group),
        rrefs_(rrefs),
        client_(client),
        server_(server),
        receive_pool_(receive_pool) {}

  transport::Disposition onHeader(std::int32_t from, std::span<const std::byte> header,
                                  std::span<const std::uint64_t> sizes,
                                  std::vector<transport::OwnedBuffer>& buffers) override;
  std::shared_ptr<transport::Arrivals> arrivals(std::int32_t from) override;
  void onTooLarge(std::int32_t from, std::span<const std::byte> header,
                  const transport::Error& why) override;
  void onMessage(std::int32_t from, std::span<const std::byte> header,
                 std::vector<transport::OwnedBuffer> buffers) override;
  void onPeerLost(const transport::PeerLoss& loss) override;
  void onPeerJoined(const transport::PeerInfo& peer) override;
  void onPeerReturned(const transport::PeerInfo& peer) override;
  void onDisplaced(const transport::PeerLoss& loss) override;
  void onSendFailed(std::int32_t to, std::span<const std::byte> header,
                    const transport::Error& reason) override;

 private:
  // False: the message was answered, and is not read.
  bool admit(worker_id_t from, std::span<const std::byte> header,
             std::span<const std::uint64_t> sizes);
  // Tells the sender of a message that is not accepted that it may free the device memory which the
  // message lends.
  void giveBack(worker_id_t from, std::span<const std::byte> header);
  // Drops a message because of `why`, and fails its call. False: the message belongs to no call.
  bool drop(worker_id_t from, std::span<const std::byte> header, const transport::Error& why);
  void onControl(worker_id_t from, const IncomingMessage& in);

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  RRefService& rrefs_;
  RequestClient& client_;
  RequestServer& server_;
  transport::WarmPool* const receive_pool_;
  // For each peer, the message whose buffers are being read.
  std::unordered_map<std::int32_t, std::shared_ptr<IncomingMessage>> reading_;
  // Peers that are connected and not taken in, and why: what they ask is refused.
  std::unordered_map<std::int32_t, std::string> outside_;
};

}  // namespace weft::rpc
