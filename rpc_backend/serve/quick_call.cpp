#include "rpc_backend/serve/quick_call.h"

#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc_backend/codec/incoming_message.h"
#include "rpc_backend/serve/callback/script_service.h"

namespace weft::rpc {

namespace {

// The largest payload that the loop thread unpickles for a quick call, and the most bytes that it
// copies or maps.
constexpr std::size_t kMaxPayload = std::size_t{4} << 10;
constexpr std::size_t kMaxBytes = std::size_t{256} << 10;
constexpr std::size_t kLongestEnd = 64;  // of a payload, where the name is
constexpr const char* kNone = "the request is malformed: it is not a quick call";

struct Call {
  std::string name;
  std::vector<at::IValue> stack;
};

// As ScriptCall::fromMessage, which resolves types' names and takes the GIL for it: here are none.
Call read(const Message& request) {
  const at::IValue value = torch::jit::unpickle(request.payload().data(), request.payload().size(),
                                                nullptr, request.tensors());
  TORCH_CHECK(value.isTuple(), kNone);
  std::vector<at::IValue> values = value.toTupleRef().elements().vec();
  // The last two: whether it is an async_execution function, and the name.
  TORCH_CHECK(values.size() >= 2 && values.back().isString() && values.end()[-2].isBool(), kNone);
  std::string name = values.back().toStringRef();
  TORCH_CHECK(name.starts_with(kQuick), kNone);
  values.resize(values.size() - 2);
  return {std::move(name), std::move(values)};
}

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
  Call call = read(request);
  const auto result = runScript(call.name, call.stack);
  TORCH_CHECK(result != nullptr, "there is no ", call.name,
              " here; install the same Weft on all workers");
  return torch::distributed::rpc::ScriptResp(result->value()).toMessage();
}

}  // namespace weft::rpc
