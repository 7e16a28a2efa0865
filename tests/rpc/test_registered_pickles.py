"""Pickles that a peer writes by hand against the policy ``registered``, and values that must still travel."""

from __future__ import annotations

import collections
import sys
import types

import pytest
from module_group import module_group
from registered_pickles import (
    BUILD,
    GET,
    HERE,
    ONE,
    OPERATIONS,
    POINT,
    POP,
    REDUCE,
    REFUSED,
    REQUEST,
    TARGETS,
    UNTOUCHED,
    Access,
    Color,
    Frozen,
    Names,
    Octets,
    OwnError,
    Pair,
    Point,
    Rights,
    Slotted,
    Stateful,
    Table,
    Text,
    Wide,
    call,
    check_untouched,
    named,
    note,
    number,
    register_all,
    request,
    same,
    send,
    shout,
    state,
    what_ran,
)
from workers import Group

# Its worker 0 attacks worker 1, which others call too.
group = module_group(3, prepare=register_all, request_policy="registered")


def test_a_request_by_hand(group):
    """So that what follows is refused for what it adds."""
    assert group[0].call(send, REQUEST) == "'TEXT'"
    assert group[0].call(send, POINT + state(x=ONE) + BUILD + POP + REQUEST) == "'TEXT'"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_named_is_not_changed(group, target, operation):
    answer = group[0].call(send, TARGETS[target] + OPERATIONS[operation] + POP + REQUEST)
    assert "the request policy here is 'registered'" in answer
    assert f"{HERE}." not in answer, "the attack has a wrong name in it"
    check_untouched(group)


@pytest.mark.parametrize("what", REFUSED)
def test_a_pickle_does_nothing_else(group, what):
    answer = group[0].call(send, REFUSED[what])
    assert "the request policy here is 'registered'" in answer
    assert f"{HERE}." not in answer, "the attack has a wrong name in it"
    check_untouched(group)


def travel() -> None:
    """Values of all kinds, there and back."""
    import torch
    import torch.distributed.rpc as rpc

    from weft._remote.named_tuples import remade

    names, table = Names([1, 2]), Table(a=1)
    names.about = table.about = "attribute"
    own_error = OwnError("text", 5)
    own_error.detail = {"a": 1}
    ordered = collections.OrderedDict(b=1, a=2)
    ordered.about = "attribute"
    values = [
        *(
            None,
            True,
            5,
            -(10**30),
            2.5,
            1j,
            "text",
            b"bytes",
            bytearray(b"bytes"),
            bytearray(70_000),
        ),
        *(
            [1, [2]],
            (1, (2, (3,))),
            {"a": {1: 2}},
            {(1, (2, 3)): 4},
            {1, (2, 3)},
            frozenset({1, (2,)}),
        ),
        *(
            slice(1, None),
            range(10**12),
            ordered,
            list(range(5000)),
            tuple((n, n) for n in range(5000)),
        ),
        *(
            torch.Size([2, 3]),
            torch.device("cpu"),
            torch.float16,
            torch.sparse_coo,
        ),
        *(
            Color.RED,
            Access.READ | Access.WRITE,
            Rights.READ | Rights.WRITE,
            Text("text"),
            Octets(b"bytes"),
            Point(1, [2]),
            Slotted(1, (2,)),
            Frozen(5),
            Stateful(7),
            Pair(1, Pair(2, "3")),
        ),
        *(names, table, ValueError, shout, {"callback": shout}, remade("P", ("a", "b"), (1, 2))),
    ]
    for value in values:
        back = rpc.rpc_sync("worker1", same, args=(value,), timeout=20)
        assert type(back) is type(value) and back == value, (value, back)
        assert getattr(back, "about", None) == getattr(value, "about", None)
    for error in (own_error, OSError(9999, "text", "file")):
        error.__notes__ = ["note"]
        back = rpc.rpc_sync("worker1", same, args=(error,), timeout=20)
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
    ring: list = []
    ring.append((ring,))
    back = rpc.rpc_sync("worker1", same, args=(ring,), timeout=20)
    assert back[0][0] is back
    shared = [1]
    back = rpc.rpc_sync("worker1", same, args=([shared, shared],), timeout=20)
    assert back[0] is back[1]
    tensors = {"a": torch.ones(2), "b": [torch.arange(3)]}
    back = rpc.rpc_sync("worker1", same, args=(tensors,), timeout=20)
    assert torch.equal(back["a"], tensors["a"]) and torch.equal(back["b"][0], tensors["b"][0])
    rref = rpc.RRef(torch.ones(2))
    assert torch.equal(
        rpc.rpc_sync("worker1", same, args=(rref,), timeout=20).to_here(), torch.ones(2)
    )


@pytest.mark.parametrize(
    "pickled",
    [
        named("\x1b[2J\n[W1128 forged]"),
        ONE + state(a=named("note", "\x1b[2J\n[W1128 forged]")),
    ],
    ids=["name", "module"],
)
def test_what_is_refused_is_printable(group, pickled):
    """torch logs the error."""
    answer = group[0].call(send, pickled + POP + REQUEST)
    assert "the request policy here is 'registered'" in answer
    assert "\x1b" not in answer + group[1].output()
    assert "\n[W1128 forged]" not in answer + group[1].output()


def kept_members() -> list[int]:
    """How many members the classes keep: Python keeps each combination that it has made."""
    return [len(one._value2member_map_) for one in (Access, Rights, Wide)]


@pytest.mark.parametrize("flag", ["Access", "Rights"])
@pytest.mark.parametrize("value", [4, 7, 1 << 30, -9])
def test_a_flag_of_unknown_bits(group, flag, value):
    before = group[1].call(kept_members)
    made = named(flag) + number(value) + b"\x85" + REDUCE
    assert f"and {flag} has no such member" in group[0].call(
        send, request(named("same"), made + b"\x85")
    )
    assert group[1].call(kept_members) == before


def test_more_combinations_of_flags_than_are_kept(group):
    one = named("Wide") + b"\x94" + POP
    made = (
        one + b"](" + b"".join(GET + number(3 * n) + b"\x85" + REDUCE for n in range(5000)) + b"e"
    )
    answer = group[0].call(send, request(named("same"), made + b"\x85"))
    assert "and Wide has 4096 members and combinations already" in answer
    assert group[1].call(kept_members)[2] == 4096
    again = named("Wide") + number(3) + b"\x85" + REDUCE
    assert "3" in group[0].call(send, request(named("same"), again + b"\x85"))


def test_values_travel(group):
    group[0].call(travel)


def end_the_caller(kind: str):
    """An answer that torch turns into an exception at the caller, or takes for a request."""
    from torch.distributed.rpc.internal import PythonUDF, RemoteException

    if kind == "PythonUDF":
        return PythonUDF(bytearray, (5,), {})
    return RemoteException("gone", {"SystemExit": SystemExit, "function": note}[kind])


def ask(kind: str) -> str:
    try:
        return call(end_the_caller, kind)
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    except SystemExit:
        return "SystemExit"


@pytest.mark.parametrize("kind", ["SystemExit", "function", "PythonUDF"])
def test_an_answer_ends_nobody(kind):
    with Group(2, per_rank=[{"request_policy": "registered"}, {}]) as members:
        members[0].call(register_all)
        assert "the request policy here is 'registered'" in members[0].call(ask, kind)
        assert members[0].call(what_ran) == UNTOUCHED
        members.shutdown()


def test_a_class_that_an_answer_names_is_not_looked_for_by_code(monkeypatch):
    """torch imports some of its modules when their names are asked for."""
    from weft._remote.named_tuples import class_called

    asked = []
    module = types.ModuleType("asked_for_names")
    module.Pair = Pair
    module.__getattr__ = asked.append
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert class_called("__torch__.asked_for_names.Pair") is Pair
    assert class_called("__torch__.asked_for_names.Other") is None
    assert not asked


def unusual_tensors() -> str:
    import torch
    import torch.distributed.rpc as rpc

    sparse = torch.eye(300).to_sparse()
    back = rpc.rpc_sync("worker1", same, args=(sparse,), timeout=20)
    assert back.is_coalesced() and torch.equal(back.to_dense(), sparse.to_dense())
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(RuntimeError) as caught:
        rpc.rpc_sync("worker1", same, args=(quantised,), timeout=20)
    return str(caught.value)


def test_sparse_tensors_arrive_and_quantised_ones_are_refused(group):
    assert "send its parts as plain tensors" in group[0].call(unusual_tensors)
