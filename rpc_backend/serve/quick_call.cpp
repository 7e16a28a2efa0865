#include "rpc_backend/serve/quick_call.h"

#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "rpc_backend/codec/incoming_message.h"
#include "rpc_backend/serve/script_service.h"

namespace weft::rpc {

namespace trpc = torch::distributed::rpc;

namespace {

// What the loop thread unpickles, and copies or maps, at most.
constexpr std::size_t kMaxPayload = std::size_t{4} << 10;
constexpr std::size_t kMaxBytes = std::size_t{256} << 10;
constexpr std::size_t kLongestEnd = 64;  // of a payload, where the name is

}  // namespace

bool looksQuick(const IncomingMessage& request) {
  if (static_cast<MessageType>(request.type()) != MessageType::SCRIPT_CALL || request.isLent())
    return false;
  if (request.bytes() > kMaxBytes || request.payloadSize() > kMaxPayload) return false;
  const auto& payload = request.payload();
  const std::string_view text(payload.data(), payload.size());
  return text.find(kQuick, text.size() - std::min(text.size(), kLongestEnd)) != text.npos;
}

MessagePtr runQuick(const Message& request) {
  const auto command = trpc::ScriptCall::fromMessage(request);
  TORCH_CHECK(command->hasQualifiedName(), "the request is malformed: it is no quick call");
  const std::string& name = command->qualifiedName().qualifiedName();
  TORCH_CHECK(name.starts_with(kQuick), "the request is malformed: it is no quick call");
  const auto result = runScript(name, command->stackRef());
  TORCH_CHECK(result != nullptr, "there is no ", name, " here: another version of Weft?");
  return trpc::ScriptResp(result->value()).toMessage();
}

}  // namespace weft::rpc
