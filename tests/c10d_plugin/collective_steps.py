"""All operations of a process group, by name."""

from __future__ import annotations

from drawn_step import Draw, Place, Prepared, Step
from message_steps import barrier, batch, from_anybody, message, monitored_barrier
from movement_steps import (
    all_gather,
    all_gather_into_tensor,
    all_gathers_at_once,
    all_to_all,
    all_to_all_single,
    broadcast,
    gather,
    scatter,
)
from reduction_steps import (
    all_reduce,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    reduce_scatters_at_once,
    reductions_at_once,
    sparse_all_reduce,
)

MEETINGS = (barrier, monitored_barrier)
MESSAGES = (message, from_anybody, batch)
REDUCTIONS = (all_reduce, reduce, reduce_scatter, reduce_scatter_tensor)
MOVEMENTS = (
    broadcast,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
)
AT_ONCE = (reductions_at_once, reduce_scatters_at_once, all_gathers_at_once, sparse_all_reduce)
KINDS = {
    function.__name__: function
    for function in (*MEETINGS, *MESSAGES, *REDUCTIONS, *MOVEMENTS, *AT_ONCE)
}


def prepare(step: Step, place: Place) -> Prepared:
    return KINDS[step.kind](Draw(step, place))
