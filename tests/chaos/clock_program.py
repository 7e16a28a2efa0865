"""A program of two workers, of which the first makes the wall clocks of both jump.

python clock_program.py RANK FOLDER

FOLDER has the workers' clocks (of wall_clock.py, "0" and "1"), and they meet there.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import wall_clock

import weft

DAY = 86_400
JUMPS = (400 * DAY, -400 * DAY, 0)  # seconds off the machine's clock
PATIENCE = 60.0
_gates: dict[str, threading.Event] = {}
_begun: set[str] = set()
STARTED, TRUE_TIME = time.monotonic(), time.time()


def gate(turn: str) -> threading.Event:
    return _gates.setdefault(turn, threading.Event())


def held(turn: str) -> tuple[float, float]:
    """Waits for the turn's gate; its deadline before and after."""
    _begun.add(turn)
    before = weft.deadline()
    gate(turn).wait(PATIENCE)
    return before, weft.deadline()


def is_held(turn: str) -> bool:
    return turn in _begun


def open_gate(turn: str) -> None:
    gate(turn).set()


def seconds_there() -> float:
    return time.time()


def check(folder: Path, who: int, to: int) -> None:
    """A call that is under way stays so; a short one ends at its time; collectives are right."""
    began, turn = time.monotonic(), f"worker{who} {to}"
    call = rpc.rpc_async("worker1", held, args=(turn,), timeout=PATIENCE)
    while not rpc.rpc_sync("worker1", is_held, args=(turn,)):
        assert time.monotonic() - began < PATIENCE
    rref = rpc.remote("worker1", torch.ones, args=([2],))
    wall_clock.jump(folder, str(who), to)
    now = (seconds_there(), rpc.rpc_sync("worker1", seconds_there))[who]
    assert abs(now - to - TRUE_TIME - (time.monotonic() - STARTED)) < PATIENCE, "it did not jump"

    started = time.monotonic()
    try:
        rpc.rpc_sync("worker1", held, args=(f"{turn}, short",), timeout=0.5)
    except RuntimeError as error:
        took = time.monotonic() - started
        assert "timed out" in str(error) or "timeout" in str(error), error
        assert 0.4 < took < 20, took
    else:
        raise AssertionError("it had no timeout")

    assert not call.done(), "the call was given up"
    for one in (turn, f"{turn}, short"):
        rpc.rpc_sync("worker1", open_gate, args=(one,))
    before, after = call.wait()
    passed = time.monotonic() - began
    assert PATIENCE >= before >= after > 0 and before - after <= passed, (before, after, passed)
    assert rref.to_here().sum() == 2
    rpc.rpc_sync("worker1", reduce_both, args=(to,))


def reduce_both(value: int) -> None:
    call = rpc.rpc_async("worker0", reduce_one, args=(value,))
    reduce_one(value)
    call.wait()


def reduce_one(value: int) -> None:
    tensor = torch.full((100_000,), float(value))
    dist.all_reduce(tensor)
    assert bool((tensor == 2 * value).all())


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    quick = {"heartbeat_interval": 0.1, "peer_timeout": 5.0}
    weft.init_rpc(
        f"worker{rank}", rank=rank, world_size=2, init_method=f"file://{folder}/rpc", **quick
    )
    dist.init_process_group("weft", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    if rank == 0:
        for who in range(2):
            for to in JUMPS:
                check(folder, who, to)
        print(f"{2 * len(JUMPS)} jumps")
    rpc.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
