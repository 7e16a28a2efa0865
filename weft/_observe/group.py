"""What all workers of the RPC group say to a question, such as what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed.rpc as rpc

from weft._observe import state
from weft._observe.answers import checked
from weft._observe.metrics import Metrics
from weft._observe.state import State
from weft._observe.waits import Waiting
from weft._torch import current
from weft._torch.printable import printable

_PATIENCE = 1.0  # seconds for a worker to answer
Answer = TypeVar("Answer")
# By question, what a worker answers besides its name and rank, which the group knows.
_SHAPES: dict[Callable[[], State], dict[str, Any]] = {
    state.own_state: {"host": str, "pid": int, "waits": list[Waiting], "metrics": Metrics},
    state.own_stacks: {"host": str, "pid": int, "stacks": str},
}
TIMED_OUT = "RPCErr:1:"  # how torch marks a call's timeout (torch/csrc/distributed/rpc/utils.h)


def stacks() -> dict[str, str]:
    """Where the threads of all workers of the RPC group are in Python, by the workers' names.

    ::

        for name, text in weft.stacks().items():
            print(name, text, sep="\\n")

    Outside of a group: those of this process. Any thread may ask. A worker that does not answer
    within a second has the reason in place of its stacks, or how to look for it. Under the request
    policy ``registered`` those with ``WEFT_METRICS`` answer, under ``script`` none.
    """
    return {one["name"]: one["error"] or one["stacks"] for one in ask_all(state.own_stacks)}


def ask_all(question: Callable[[], State]) -> list[State]:
    """By rank. Of a worker that gives no such answer in a second: its name, rank and an error."""
    own = question()
    agent = current.agent()
    if agent is None:
        return [own]
    others = [info for info in agent.get_worker_infos() if info.id != own["rank"]]
    waits = [(info, ask(info.name, question)) for info in others]
    answers = [_answer(info, wait, _SHAPES[question]) for info, wait in waits]
    return sorted([own, *answers], key=lambda one: one["rank"])


def ask(
    worker: str,
    question: Callable[..., Answer],
    timeout: float = _PATIENCE,
    args: tuple[Any, ...] = (),
) -> Callable[[], Answer]:
    """Asks a worker; what is returned waits for its answer, or raises why there is none."""
    try:
        return rpc.rpc_async(worker, question, args=args, timeout=timeout).wait
    except RuntimeError as error:
        lost = error

        def fail() -> Answer:
            raise lost

        return fail


def why_silent(error: Exception) -> str:
    """In a line, for a worker that was given a second."""
    text = str(error).partition("\n")[0]
    return silent(_PATIENCE) if text.startswith(TIMED_OUT) else text


def silent(seconds: float) -> str:
    """What is said of a worker or rank that gave no answer for so long."""
    return (
        f"does not answer within {seconds:g} s: it is stopped, or native code holds Python's lock "
        "there; look with py-spy dump --pid PID on its host"
    )


def _answer(info: rpc.WorkerInfo, wait: Callable[[], State], shape: dict[str, Any]) -> State:
    who = {"name": info.name, "rank": info.id}
    try:
        return {**who, **checked(wait(), shape), "error": ""}
    except Exception as error:
        return {**who, "error": printable(why_silent(error))}
