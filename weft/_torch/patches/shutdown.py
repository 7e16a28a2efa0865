"""Patches of ``rpc.shutdown``: the barrier before it, and the report of leaked RRefs in it."""

from __future__ import annotations

import sys
from typing import Any

from torch.distributed.rpc import api

from weft._torch import current
from weft._torch.interruptible import interruptible
from weft._torch.patches.patch import Function, patch


@patch(
    "torch.distributed.rpc.api:_wait_all_workers",
    "(timeout=0)",
    without="rpc.shutdown over Weft may wait for minutes for a lost worker.",
    caller="torch.distributed.rpc.api:shutdown",
)
def wait_all_workers(upstream: Function, timeout: float = api.DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Waits in the agent's own barrier, which knows who is lost.

    torch's barrier is an all-gather over Python calls: it waits for minutes when a worker has died, or
    was started again and counts these gathers anew; and request policies refuse it. It still follows
    Weft's barrier where all workers live and serve Python, because programs see its failures in
    ``shutdown``. A dynamic group has no barrier: its workers leave one by one.
    """
    agent = current.agent()
    if agent is None:
        upstream(timeout)
        return
    agent.check_process()
    if not agent.is_static_group:
        return
    lost_or_new = agent.barrier(timeout)
    # Either all workers take part in torch's, or none.
    if not lost_or_new and agent.everyone_serves_python:
        upstream(timeout or api.get_rpc_timeout())


@patch(
    "torch.distributed.rpc.api:_delete_all_user_and_unforked_owner_rrefs",
    "(timeout=datetime.timedelta(seconds=100))",
    without="Ctrl-C does not end rpc.shutdown while RRefs are in use.",
    caller="torch.distributed.rpc.api:shutdown",
)
def delete_rrefs(upstream: Function, *args: Any) -> Any:
    """Waits for the last users of RRefs until Ctrl-C; not for values that are still being created."""
    agent = current.agent()
    if agent is None:
        return upstream(*args)
    agent.fail_unfinished_rrefs()
    return interruptible(upstream, *args)


@patch(
    "torch.distributed.rpc.api:_destroy_rref_context",
    "(arg0)",
    without="rpc.shutdown names leaked RRefs by number only.",
    caller="torch.distributed.rpc.api:_finalize_shutdown",
)
def destroy_rref_context(upstream: Function, ignore_leak: bool) -> Any:
    """Says which RRefs leak and who refers to them; torch names them by number only."""
    agent = current.agent()
    if agent is not None:
        # Ctrl-C ended the orderly part of rpc.shutdown, which then comes here.
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            agent.hurry()
        agent.warn_about_leaked_rrefs(ignore_leak)
    return upstream(ignore_leak)
