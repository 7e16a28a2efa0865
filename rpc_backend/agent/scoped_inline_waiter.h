// Seated: an AnswerSeat for a scope. A thread takes it, sends its call, and waits with
// AnswerSeat::wait(); when the call cannot be sent, the seat is left all the same.
#pragma once

#include "rpc_backend/agent/inline_waiter.h"

namespace weft::rpc {

class Seated {
 public:
  Seated() { AnswerSeat::take(); }
  ~Seated() { AnswerSeat::leave(); }
  Seated(const Seated&) = delete;
  Seated& operator=(const Seated&) = delete;
};

}  // namespace weft::rpc
