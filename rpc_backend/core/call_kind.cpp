#include "rpc_backend/core/call_kind.h"

namespace weft::rpc {

bool waitsInTorch(MessageType type) {
  return type == MessageType::SCRIPT_RREF_FETCH_CALL || type == MessageType::PYTHON_RREF_FETCH_CALL;
}

bool mayHaveWaiter(MessageType type) {
  return type == MessageType::SCRIPT_CALL || type == MessageType::PYTHON_CALL;
}

bool isUserCall(MessageType type) {
  switch (type) {
    case MessageType::SCRIPT_CALL:
    case MessageType::PYTHON_CALL:
    case MessageType::SCRIPT_REMOTE_CALL:
    case MessageType::PYTHON_REMOTE_CALL:
    case MessageType::SCRIPT_RREF_FETCH_CALL:
    case MessageType::PYTHON_RREF_FETCH_CALL:
    case MessageType::RREF_BACKWARD_REQ:
      return true;
    default:
      return false;
  }
}

}  // namespace weft::rpc
