#include "rpc_backend/core/call_kind.h"

namespace weft::rpc {

CallKind kindOf(MessageType type) {
  switch (type) {
    case MessageType::SCRIPT_CALL:
      return CallKind::kScript;
    case MessageType::PYTHON_CALL:
      return CallKind::kPython;
    case MessageType::SCRIPT_REMOTE_CALL:
    case MessageType::PYTHON_REMOTE_CALL:
      return CallKind::kRemote;
    case MessageType::SCRIPT_RREF_FETCH_CALL:
    case MessageType::PYTHON_RREF_FETCH_CALL:
      return CallKind::kFetch;
    default:
      return CallKind::kOther;
  }
}

bool createsRRef(MessageType type) { return kindOf(type) == CallKind::kRemote; }

bool isFetch(MessageType type) { return kindOf(type) == CallKind::kFetch; }

bool mayHaveWaiter(MessageType type) {
  const CallKind kind = kindOf(type);
  return kind == CallKind::kScript || kind == CallKind::kPython;
}

bool mayBeDropped(MessageType type) {
  const CallKind kind = kindOf(type);
  return kind == CallKind::kScript || kind == CallKind::kPython || kind == CallKind::kFetch;
}

bool isUserCall(MessageType type) {
  return kindOf(type) != CallKind::kOther || type == MessageType::RREF_BACKWARD_REQ;
}

}  // namespace weft::rpc
