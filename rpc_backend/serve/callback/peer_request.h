// PeerRequest: the request of a peer that this thread hands to torch. It is looked at as torch has
// read it, before torch acts on it.
//
// A context of distributed autograd ends where it was begun, whoever says that it is over: torch
// tells all workers to end the contexts of a lost one, and says it again until it is heard, which
// may be the one that was lost and has come back.
//
// Where the policy distrusts peers, more is checked. What Weft reads in a payload of a hostile peer
// (rref_wire.h) may be something else than what torch reads. Peers may name what is not theirs:
// ids of RRefs and of contexts are counted, and so can be guessed.
//
// Threads: the one that serves the request. checked() takes the request out of the scope: what
// torch reads later on this thread is not the peer's.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_command_base.h>
#include <torch/csrc/distributed/rpc/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "rpc_backend/core/torch_names.h"
#include "transport/base/api.h"

namespace weft::rpc {

class PeerContexts;

class PeerRequest {
 public:
  using Command = torch::distributed::rpc::RpcCommandBase;

  // `gradients`: gets what lives as long as gradients that the request brings are taken.
  PeerRequest(worker_id_t from, PeerContexts& contexts, bool distrusts,
              std::shared_ptr<void>& gradients);
  ~PeerRequest();
  PeerRequest(const PeerRequest&) = delete;
  PeerRequest& operator=(const PeerRequest&) = delete;

  // What torch is to serve in place of `command` of that type: nearly always `command`, and always
  // outside of a scope. Throws c10::Error, which the peer gets, for what it must not ask.
  WEFT_API static std::unique_ptr<Command> checked(std::unique_ptr<Command> command,
                                                   MessageType type);
  // Who asks, until checked(); nothing outside of a scope.
  WEFT_API static std::optional<worker_id_t> sender() noexcept;

 private:
  bool mayEnd(std::int64_t context) const;
  // --- of a peer that is distrusted ---
  void check(Command& command, MessageType type) const;
  void checkWrapped(Command& command, MessageType type) const;
  void checkContext(std::int64_t context) const;
  void checkCreated(const torch::distributed::rpc::GloballyUniqueId& value,
                    const torch::distributed::rpc::GloballyUniqueId& fork) const;

  const worker_id_t from_;
  PeerContexts& contexts_;
  const bool distrusts_;
  std::shared_ptr<void>& gradients_;
};

}  // namespace weft::rpc
