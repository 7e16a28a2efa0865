"""A reference that reaches the owner before the call that creates its value has ended: whoever waits
for the value there gets it, or an error, whatever becomes of that reference meanwhile."""

from __future__ import annotations

import random
import re
import signal
from typing import Any

import pytest
import torch
from rref_workers import GATE, HELD, Group, drop_all, leave, open_gate, report, wait_for_gate
from torch.distributed.rpc import RRef
from waiting import takes, wait_until

import weft

assert weft.wait_published  # and its operators, of which the scripts are made

SOON = 20.0
CREATOR, OWNER, OTHER = range(3)
NAMES = [f"worker{rank}" for rank in (CREATOR, OWNER, OTHER)]


def _rpc() -> Any:
    import torch.distributed.rpc as rpc

    return rpc


# What workers run.


def see(reference: Any) -> bool:
    return reference.is_owner()


def size_of(reference: Any) -> int:
    """At the owner: waits for the value."""
    return reference.local_value().numel()


def pass_to_itself(reference: Any) -> int:
    """At the owner, whose reference goes and comes back before the value is there."""
    rpc = _rpc()
    assert rpc.rpc_sync(rpc.get_worker_info().name, see, args=(reference,))
    GATE.set()
    return size_of(reference)


def give_back() -> Any:
    return HELD.pop()


def get_back_from_itself(reference: Any) -> int:
    """As above; the reference comes back in the answer."""
    rpc = _rpc()
    HELD.append(reference)
    del reference
    back = rpc.rpc_sync(rpc.get_worker_info().name, give_back)
    GATE.set()
    return size_of(back)


def start_size_of(reference: Any) -> None:
    """At a third worker, whose own reference then goes."""
    HELD.append(_rpc().rpc_async("worker1", size_of, args=(reference,)))


def result_of_started() -> int:
    return HELD.pop().wait()


def create_and(call: Any) -> int:
    reference = _rpc().remote("worker1", wait_for_gate, args=(10,))
    return _rpc().rpc_sync("worker1", call, args=(reference,), timeout=SOON)


def hold_and_start_at_other() -> None:
    HELD.append(_rpc().remote("worker1", wait_for_gate, args=(10,)))
    _rpc().rpc_sync("worker2", start_size_of, args=(HELD[0],), timeout=SOON)


def create_what_the_owner_cannot_import() -> int:
    """The owner knows no such module: torch fails before it has noted the value."""
    import sys
    import types

    module = types.ModuleType("only_here")
    exec("def made():\n    return 1", module.__dict__)
    sys.modules["only_here"] = module
    reference = _rpc().remote("worker1", module.made)
    return _rpc().rpc_sync("worker1", size_of, args=(reference,), timeout=SOON)


def wait_at_owner() -> None:
    reference = _rpc().remote("worker1", wait_for_gate, args=(10,))
    HELD.append(reference)
    HELD.append(_rpc().rpc_async("worker1", size_of, args=(reference,)))


def waiting() -> int:
    agent = _rpc().api._get_current_rpc_agent()
    return int(agent.get_metrics()["agent.server_active_calls"])


@torch.jit.script
def made_by_script(x: torch.Tensor) -> torch.Tensor:
    return x


@torch.jit.script
def fetched_at_owner(reference: RRef[torch.Tensor]) -> torch.Tensor:
    return torch.ops.weft.fetch(reference)


def wait_at_owner_in_script() -> None:
    reference = _rpc().remote("worker1", made_by_script, args=(torch.ones(2),))
    HELD.append(reference)
    HELD.append(_rpc().rpc_async("worker1", fetched_at_owner, args=(reference,)))


def make_own_and_wait() -> int:
    reference = _rpc().remote("worker1", wait_for_gate, args=(10,))
    print("waits", flush=True)
    return size_of(reference)


def numbered(number: int, seconds: float) -> Any:
    import torch

    takes(seconds)
    return torch.tensor(number)


def see_later(reference: Any, seconds: float) -> None:
    takes(seconds)


def pass_along(reference: Any, path: list[str], seed: int) -> int:
    """The last of the path asks for the value; the others may let go of the reference first."""
    rpc, chosen = _rpc(), random.Random(seed)
    if not path:
        if chosen.random() < 0.3:
            return rpc.rpc_sync(reference.owner(), value_of, args=(reference,))
        return value_of(reference) if reference.is_owner() else reference.to_here().item()
    if chosen.random() < 0.4:
        rpc.rpc_async(chosen.choice(NAMES), see_later, args=(reference, chosen.choice([0, 0.002])))
    answer = rpc.rpc_async(path[0], pass_along, args=(reference, path[1:], seed + 1))
    if chosen.random() < 0.5:
        del reference
    return answer.wait()


def value_of(reference: Any) -> int:
    return reference.local_value().item()


def pass_at_random(seed: int, steps: int) -> None:
    """Makes values and passes references to them along random paths, at once."""
    rpc, chosen = _rpc(), random.Random(seed)
    waits = []
    for number in range(steps):
        seconds = chosen.choice([0, 0, 0.001, 0.01])
        reference = rpc.remote(chosen.choice(NAMES), numbered, args=(number, seconds))
        first, *path = chosen.choices(NAMES, k=chosen.randrange(1, 5))
        arguments = (reference, path, 1000 * seed + number)
        waits.append((number, rpc.rpc_async(first, pass_along, args=arguments)))
        if chosen.random() < 0.5:
            del reference
        while len(waits) > chosen.randrange(1, 6):
            expected, answer = waits.pop(chosen.randrange(len(waits)))
            assert answer.wait() == expected
    assert all(answer.wait() == expected for expected, answer in waits)


def never() -> Any:
    import torch

    return torch.futures.Future()


never._wrapped_async_rpc_function = never  # type: ignore[attr-defined]  # rpc.functions.async_execution


def create_what_never_ends() -> None:
    with pytest.raises(RuntimeError, match="ran for more than"):
        _rpc().remote("worker1", never).to_here(1)


# Tests.


@pytest.mark.parametrize("way", [pass_to_itself, get_back_from_itself])
def test_a_value_that_its_owner_passes_to_itself(way) -> None:
    with Group(2) as group:
        assert group[CREATOR].call(create_and, way) == 10
        group.all(leave)


def test_a_value_whose_only_other_reference_goes() -> None:
    with Group(3) as group:
        group[CREATOR].call(hold_and_start_at_other)
        wait_until(
            lambda: not any("worker2" in row.holders for row in group[OWNER].call(report)),
            "the owner has heard that worker2's reference is gone",
        )
        group[OWNER].call(open_gate)
        assert group[OTHER].call(result_of_started) == 10
        group[CREATOR].call(drop_all)
        assert max(group.all(leave)) < SOON


def test_a_value_that_torch_fails_to_create() -> None:
    faults = {"messages_to_delay": {"PYTHON_REMOTE_CALL": 1.0}}
    with Group(2, faults=faults) as group:
        error = group[CREATOR].fails(create_what_the_owner_cannot_import)
        assert re.search("was not created: .*only_here", error.message, re.DOTALL), error.message
        assert max(group.all(leave)) < SOON


@pytest.mark.parametrize("wait", [wait_at_owner, wait_at_owner_in_script])
def test_a_value_whose_creator_dies_before_its_call_comes(wait) -> None:
    faults = {"messages_to_delay": {"PYTHON_REMOTE_CALL": 60.0, "SCRIPT_REMOTE_CALL": 60.0}}
    with Group(2, faults=faults) as group:
        assert group[OWNER].call(waiting) == 0  # and it has this file's scripts
        group[CREATOR].call(wait)
        wait_until(lambda: group[OWNER].call(waiting) == 1, "the owner waits")
        group[CREATOR].kill()
        wait_until(lambda: group[OWNER].call(waiting) == 0, "the wait has ended", SOON)
        assert group[OWNER].call(leave) < SOON


def test_a_value_whose_creation_never_ends() -> None:
    """Nobody refers to it any more, so rpc.shutdown does not wait for it."""
    with Group(2, rpc_timeout=2) as group:
        group[CREATOR].call(create_what_never_ends)
        assert max(group.all(leave)) < SOON


def test_ctrl_c_ends_the_wait() -> None:
    with Group(2) as group:
        group[OWNER].start(make_own_and_wait)
        group[OWNER].wait_for_output("waits")
        group[OWNER].signal(signal.SIGINT)
        assert group[OWNER].failure(SOON).kind == "KeyboardInterrupt"
        group[OWNER].call(open_gate)


@pytest.mark.parametrize("seed", range(4))
def test_random_paths(seed: int) -> None:
    with Group(3, rpc_timeout=SOON) as group:
        for rank, worker in enumerate(group):
            worker.start(pass_at_random, 10 * seed + rank, 60)
        for worker in group:
            worker.result()
        assert max(group.all(leave)) < SOON
