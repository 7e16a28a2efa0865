// Messages that only Weft's agents exchange. Payloads are text; a receiver answers each with a
// kControlAck of the same call id, whose text is empty on success, else the error.
#pragma once

#include <cstdint>

namespace weft::rpc {

enum class ControlType : std::uint16_t {
  kPing = 1,   // nothing but the link: makes the loss of a quiet peer known
  kJoin = 2,   // dynamic groups: the sender's MemberRecord
  kLeave = 3,  // dynamic groups: the sender goes
};

}  // namespace weft::rpc
