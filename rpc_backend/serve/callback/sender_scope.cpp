#include "rpc_backend/serve/callback/sender_scope.h"

#include <utility>

namespace weft::rpc {
namespace {

thread_local std::optional<worker_id_t> sender_of_message;

}  // namespace

SenderScope::SenderScope(std::optional<worker_id_t> sender) noexcept
    : outer_(std::exchange(sender_of_message, sender)) {}

SenderScope::~SenderScope() { sender_of_message = outer_; }

std::optional<worker_id_t> SenderScope::sender() noexcept { return sender_of_message; }

}  // namespace weft::rpc
