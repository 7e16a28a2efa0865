"""Built-in operators with random arguments: over RPC as by torch's own path, whatever was called before.

WEFT_TEST_SEED and WEFT_TEST_CASES choose; the seed of a run is printed, and a failure names the call.
"""

from __future__ import annotations

import hashlib
import os
import random
import re

import pytest
from module_group import module_group
from random_calls import UNWRITTEN, Call, call, calls, deadly, operators

CASES = int(os.environ.get("WEFT_TEST_CASES", "400"))
SEED = int(os.environ.get("WEFT_TEST_SEED", "1"))
PER_CASE = 0.1  # seconds that one may take on a busy machine
LIMIT = 60 + CASES * PER_CASE  # for the calls without RPC, and for those with it
# torch's own mistakes: an overload that it fails to look at; a tensor that cannot be sent, nor copied
# by a call to oneself.
NO_ANSWER = re.compile("INTERNAL ASSERT FAILED|a size is negative")
pytestmark = pytest.mark.timeout(60 + 2 * LIMIT)


group = module_group(2, rpc_timeout=60)


def _callable(name: str):
    """Something that rpc_sync takes for that operator, as it takes torch.add for aten::add."""
    from torch.jit import _builtins

    def stands_for_it():
        raise AssertionError("only its identity counts")

    _builtins._register_builtin(stands_for_it, f"aten::{name}")
    return stands_for_it


def _outcome(make):
    """(True, value), or (False, what was raised)."""
    try:
        return True, make()
    except Exception as error:
        # Without the frames of C++ and of Python, addresses, and which worker it was.
        text = re.split("\nException raised from|\n\nAt:\n", str(error))[0]
        text = re.sub(r"0x[0-9a-f]+|Error on Node \d|WorkerInfo\([^)]*\)", "", text)
        return False, f"{type(error).__name__}: {text}"


def _alike(ours, theirs, written: bool) -> bool:
    import torch

    if isinstance(theirs, (tuple, list)):
        return (
            isinstance(ours, (tuple, list))
            and len(ours) == len(theirs)
            and all(_alike(x, y, written) for x, y in zip(ours, theirs, strict=True))
        )
    if not isinstance(theirs, torch.Tensor):
        return type(ours) is type(theirs) and (ours == theirs or repr(ours) == repr(theirs))
    if not isinstance(ours, torch.Tensor):
        return False
    if (ours.dtype, ours.shape, ours.requires_grad, ours.layout) != (
        theirs.dtype,
        theirs.shape,
        theirs.requires_grad,
        theirs.layout,
    ):
        return False
    if not written:
        return True
    return repr(ours.detach().to_dense().tolist()) == repr(theirs.detach().to_dense().tolist())


def seed_here(seed: int) -> None:
    import torch

    torch.manual_seed(seed)


def drawn_here() -> bytes:
    """What has been drawn since the seed: an operator that ran twice has drawn twice."""
    import torch

    return hashlib.sha1(torch.get_rng_state().numpy().tobytes()).digest()


def _try(to: str, made: Call, func, how: str, seed: int):
    """What one way of making the call brings, and what the callee has drawn for it; the arguments are
    made anew for each."""
    import torch.distributed.rpc as rpc

    rpc.rpc_sync(to, seed_here, args=(seed,))
    outcome = _make(to, made, func, how)
    return (*outcome, rpc.rpc_sync(to, drawn_here))


def _make(to: str, made: Call, func, how: str):
    import torch.distributed.rpc as rpc

    info = rpc.get_worker_info(to)
    if how == "sync":
        return _outcome(lambda: rpc.rpc_sync(to, func, made.args, made.kwargs))
    if how == "async":
        return _outcome(lambda: rpc.rpc_async(to, func, made.args, made.kwargs).wait())
    if how == "torch":
        upstream, mode = rpc.api._invoke_rpc.__wrapped__, rpc.api.RPCExecMode.ASYNC
        return _outcome(lambda: upstream(to, func, mode, made.args, made.kwargs).wait())
    remote = rpc.api._invoke_remote_builtin
    if how == "torch's remote":
        remote = remote.__wrapped__

    def held():
        rref = remote(info, f"aten::{made.name}", -1.0, *made.args, **made.kwargs)
        rref._get_future().wait()  # else to_here() of one that could not be created waits for long
        return rref.to_here()

    return _outcome(held)


def compare(seed: int, count: int, skipped: list[int], trace: bool = False) -> list[str]:
    """Each call one of Weft's ways and torch's own; returns how many succeeded and what differs.

    A call that ends the process is the last that `trace` shows."""
    import warnings

    import torch.distributed.rpc as rpc

    warnings.simplefilter("ignore")
    me = rpc.get_worker_info().name
    peer = next(i.name for i in rpc.api._get_current_rpc_agent().get_worker_infos() if i.name != me)
    random_ = random.Random(seed)
    functions: dict[str, object] = {}
    differ, worked = [], 0
    for index, (name, call_seed) in enumerate(calls(seed, count)):
        func = functions.setdefault(name, None) or _callable(name)
        functions[name] = func
        how = random_.choice(["sync", "sync", "async", "remote"])
        to, theirs_at = random_.choice([(peer, me), (peer, peer), (me, peer)])
        if how == "remote":
            to = theirs_at = peer
            # torch asks for the type of the first result.
            if not all(schema.returns for schema in operators()[name]):
                how = "sync"
        if index in skipped:
            continue
        made = [call(random.Random(call_seed), name) for _ in range(2)]
        if trace:
            print(index, how, made[0], flush=True)
        ours = _try(to, made[0], func, how, call_seed)
        by_torch = "torch's remote" if how == "remote" else "torch"
        theirs = _try(theirs_at, made[1], func, by_torch, call_seed)
        worked += theirs[0]
        written = UNWRITTEN.search(name) is None
        if not theirs[0] and NO_ANSWER.search(theirs[1]):
            continue
        same = ours[0] == theirs[0] and (
            _alike(ours[1], theirs[1], written) if theirs[0] else ours[1] == theirs[1]
        )
        if not same:
            differ.append(f"case {index}, {how} {made[0]}:\n  {ours[1]!r}\n  not {theirs[1]!r}")
        elif ours[2] != theirs[2]:
            differ.append(f"case {index}, {how} {made[0]}: drew otherwise than by torch")
    return [str(worked), *differ]


def test_random_calls_answer_as_torch_does(group, tmp_path):
    print(f"WEFT_TEST_SEED={SEED} WEFT_TEST_CASES={CASES}")
    skipped = deadly(SEED, CASES, tmp_path / "progress", LIMIT)
    print(f"torch ends the process in {len(skipped)} of them")
    worked, *differ = group[0].call(compare, SEED, CASES, skipped, timeout=LIMIT)
    assert not differ, f"WEFT_TEST_SEED={SEED}: {len(differ)} of {CASES} differ\n" + "\n".join(
        differ[:5]
    )
    assert int(worked) > CASES // 10, f"only {worked} of {CASES} calls worked: they show little"
