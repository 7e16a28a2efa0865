// Through which agent RRefs send their messages when they are forked and dropped: torch's
// RRefContext keeps it, for the process. Any thread.
//
// It names private members (private_member.h), which are the same in 2.11 to 2.15, but that 2.15
// keeps its current agent in an atomic pointer.
#pragma once

namespace weft::rpc::torch_rrefs {

// torch's RRefContext belongs to the process and keeps the first agent that it saw, and
// rpc.shutdown marks it as destroyed for ever: in a group that the process joins later, RRefs that
// are dropped would send nothing, and others would send through the agent that has shut down. From
// here on they send through the current agent. References of the former group are ended, as after a
// graceful shutdown: the new group may have given their ids to other values. When this process has
// a current agent; before it serves.
void beginWithCurrentAgent();

// In children forked from now on RRefs send nothing when they go, and find no lock of torch's
// taken. When this process has a current agent; a second call changes nothing.
void endInForkedChildren();

}  // namespace weft::rpc::torch_rrefs
