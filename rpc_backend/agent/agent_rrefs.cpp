#include "rpc_backend/agent/agent_rrefs.h"

#include "rpc_backend/agent/agent_parts.h"

namespace weft::rpc {

void AgentRRefs::onOwnWait(const torch::distributed::rpc::RRefId& value) const {
  parts_.context.process.check("waiting for the value of an RRef");
  parts_.rrefs.onOwnWait(fromTorch(value));
}

void AgentRRefs::failUnfinished() const {
  if (parts_.context.process.holds()) parts_.rrefs.failUnfinished();
}

void AgentRRefs::undoFork(const PickledRRef& rref) const {
  if (parts_.context.process.holds()) parts_.rrefs.lifecycle().undoFork(rref);
}

std::vector<RRefRow> AgentRRefs::report() const {
  parts_.context.process.check("weft.rref_report()");
  return parts_.rrefs.lifecycle().report();
}

bool AgentRRefs::isOrphan(const RRefKey& value, worker_id_t owner) const {
  parts_.context.process.check("asking for an RRef");
  return parts_.rrefs.isOrphan(value, owner);
}

void AgentRRefs::warnAboutLeaks(bool ignored) const {
  if (parts_.context.process.holds()) parts_.rrefs.warnAboutLeaks(ignored);
}

}  // namespace weft::rpc
