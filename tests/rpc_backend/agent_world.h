// An agent's parts without torch's agent, and an endpoint beside it that records.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rpc_backend/agent/message_router.h"
#include "rpc_backend/wire/wire_writer.h"
#include "tests/transport/recorder.h"

namespace weft::rpc::testing {

inline constexpr std::uint64_t kNobodyHasThis = std::uint64_t{1} << 60;

inline WeftRpcBackendOptions optionsWith(std::uint64_t max_inflight_bytes, RequestPolicy policy) {
  WeftRpcBackendOptions options(60, "");
  options.max_inflight_bytes = max_inflight_bytes;
  options.request_policy = policy;
  return options;
}

// Rank 0's parts, called as its loop thread would; rank 1 is an endpoint that records.
struct AgentWorld {
  explicit AgentWorld(
      std::uint64_t max_inflight_bytes = 2 * kNobodyHasThis, std::optional<int> world_size = 2,
      c10::intrusive_ptr<c10d::HashStore> shared_store = c10::make_intrusive<c10d::HashStore>(),
      RequestPolicy policy = RequestPolicy::kAny)
      : store(std::move(shared_store)),
        context("worker0", 0, optionsWith(max_inflight_bytes, policy), {}),
        group(context, sender, {}, store, world_size, 0) {
    group.directory().add("worker0", 0);
    group.directory().add("worker1", 1);
    sender.open(transport::optionsFor(0), router);
    peer = transport::openEndpoint(transport::optionsFor(1), recorder);
    transport::expectOk(sender.endpoint()->addPeer(transport::infoOf(1, *peer)));
    transport::expectOk(peer->addPeer(transport::infoOf(0, *sender.endpoint())));
  }
  ~AgentWorld() {
    sender.close();
    context.stopThreads();
  }

  // Of `kind`, with one tensor of so many bytes.
  transport::Disposition announce(WireKind kind, std::uint64_t call_id, std::uint64_t bytes) {
    std::vector<std::byte> header = headerOf(kind, call_id, bytes);
    std::vector<transport::OwnedBuffer> buffers(1);
    return router.onHeader(1, header, std::vector<std::uint64_t>{bytes}, buffers);
  }
  static std::vector<std::byte> headerOf(WireKind kind, std::uint64_t call_id,
                                         std::uint64_t bytes) {
    std::vector<std::byte> header;
    WireWriter writer(header);
    WireHeader head;
    head.kind = kind;
    head.call_id = call_id;
    head.tensor_count = 1;
    writer.header(head);
    TensorMeta meta;
    meta.form = TensorForm::kPickled;
    meta.bytes = bytes;
    writer.tensor(meta);
    return header;
  }

  // A request of rank 1 comes: it waits, as the workers are held.
  void ask(MessageType type, std::span<const char> payload) {
    std::vector<std::byte> header;
    WireHeader head;
    head.type = static_cast<std::uint16_t>(type);
    head.call_id = 7;
    head.payload = std::as_bytes(payload);
    WireWriter(header).header(head);
    std::vector<transport::OwnedBuffer> buffers;
    ASSERT_EQ(router.onHeader(1, header, {}, buffers), transport::Disposition::kAccept);
    router.onMessage(1, header, {});
  }

  const c10::intrusive_ptr<c10d::HashStore> store;
  // Declared before the parts that refer to them.
  transport::Recorder recorder;
  std::unique_ptr<transport::Endpoint> peer;
  AgentContext context;
  MessageSender sender{context};
  Group group;
  RRefService rrefs{context, sender, group, {}};
  RequestClient client{context, sender, group, rrefs, {}};
  RequestServer server{context, sender, group, rrefs, client, nullptr};
  MessageRouter router{context, sender, group, rrefs, client, server, nullptr};
};

}  // namespace weft::rpc::testing
