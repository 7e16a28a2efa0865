// AnswerReader: takes the answers to calls and completes the calls with them.
//
// Threads: the on...() members run on the loop thread. CallCompleter says on which thread a call's
// future is completed.
// Failure: an answer that is refused, or can't be read, is the error of its call. The RRefs in what
// torch does not get are declined.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "rpc_backend/call/call_completer.h"
#include "rpc_backend/call/call_table.h"
#include "rpc_backend/call/rref_decliner.h"
#include "rpc_backend/codec/message_sender.h"
#include "rpc_backend/group/group.h"
#include "rpc_backend/rref/rref_service.h"

namespace weft::rpc {

class AnswerReader {
 public:
  // All live as long as this.
  AnswerReader(AgentContext& context, MessageSender& sender, Group& group, RRefService& rrefs,
               CallTable& calls, CallCompleter& completer, RRefDecliner& decliner)
      : context_(context),
        sender_(sender),
        group_(group),
        rrefs_(rrefs),
        calls_(calls),
        completer_(completer),
        decliner_(decliner) {}

  void onAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in);
  void onControlAck(worker_id_t from, const IncomingMessage& in);
  // The answer to a request of this worker to itself. `made` holds its message, and was completed
  // on the streams that made it. Worker thread.
  void completeOwn(std::uint64_t id, const FuturePtr& made);

 private:
  void takeAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in, PendingCall& call);
  // Why the answer must not be given to torch, as a clause about it; nothing when it may.
  std::optional<std::string> faultOf(worker_id_t from, const IncomingMessage& in,
                                     const CallCompleter::Asked& asked) const;
  void readAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in,
                  const CallCompleter::Asked& asked, JitFuture& future);
  void takeOwn(JitFuture& made, const CallCompleter::Asked& asked, JitFuture& future);

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  RRefService& rrefs_;
  CallTable& calls_;
  CallCompleter& completer_;
  RRefDecliner& decliner_;
};

}  // namespace weft::rpc
