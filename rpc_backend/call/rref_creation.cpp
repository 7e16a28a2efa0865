#include "rpc_backend/call/rref_creation.h"

#include <torch/csrc/distributed/rpc/utils.h>

#include <stdexcept>
#include <thread>

#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/core/innermost.h"
#include "rpc_backend/core/log.h"

namespace weft::rpc {

namespace {

// The prefix of a text that names the kind of error (makeRPCError).
constexpr const char* kErrorPrefix = "RPCErr:";

std::exception_ptr runtimeError(const std::string& text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

}  // namespace

bool confirmsCreation(MessageType type, std::span<const char> payload,
                      const std::optional<ForkIds>& created) {
  const Innermost answer = innermost(type, payload);
  if (answer.type != MessageType::REMOTE_RET) return false;
  const auto ids = readForkIds(answer.payload);
  return ids && (!created || *ids == *created);
}

std::exception_ptr callError(MessageType type, const std::string& text, bool logged) {
  if (!createsRRef(type) || text.starts_with(kErrorPrefix)) return runtimeError(text);
  if (!logged) logWarning("rpc.remote() failed, and its RRef has no value: " + text);
  using torch::distributed::rpc::makeRPCError;
  return runtimeError(makeRPCError(text, torch::distributed::rpc::RPCErrorType::TIMEOUT));
}

torch_rrefs::RRefPtr markRRef(const JitFuture& creation, const std::optional<ForkIds>& created,
                              bool closing) {
  const std::chrono::seconds longest(closing ? 0 : 5);
  const auto until = std::chrono::steady_clock::now() + longest;
  while (true) {
    auto marked = torch_rrefs::markFailed(creation, created);
    if (marked || std::chrono::steady_clock::now() >= until) return marked;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

bool markOwnRRef(std::span<const char> payload) {
  const auto created = readCreatedIds(payload);
  return created && torch_rrefs::markOwnFailed(created->value);
}

void dropOwnRRef(const Message& unsent) {
  const Innermost asked = innermost(unsent.type(), unsent.payload());
  if (!createsRRef(asked.type)) return;
  if (const auto created = readCreatedIds(asked.payload)) torch_rrefs::dropOwn(created->value);
}

}  // namespace weft::rpc
