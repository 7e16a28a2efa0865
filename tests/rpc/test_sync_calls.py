"""Calls that do not go torch's way: who waits completes them; built-in operators' overloads and futures."""

from __future__ import annotations

import functools
import threading

import pytest
from gate import close_gate, open_gate, wait_for_gate, wait_until_begun
from module_group import module_group
from threads import in_threads
from workers import Group

group = module_group(3, rpc_timeout=30)


def peer() -> str:
    import torch.distributed.rpc as rpc

    ranks = sorted(info.id for info in rpc.api._get_current_rpc_agent().get_worker_infos())
    me = rpc.get_worker_info().id
    return _name_of(ranks[(me + 1) % len(ranks)])


def _name_of(rank: int) -> str:
    import torch.distributed.rpc as rpc

    infos = rpc.api._get_current_rpc_agent().get_worker_infos()
    return next(info.name for info in infos if info.id == rank)


def arguments():
    import torch

    a, scalar = torch.arange(6.0).reshape(2, 3), torch.tensor(2.5)
    leaf = torch.ones(3, requires_grad=True)
    return [
        (torch.add, (a, 1), {}),
        (torch.add, (a, 1.5), {}),
        (torch.add, (a, True), {}),
        (torch.add, (a, a), {}),
        (torch.add, (a, scalar), {}),
        (torch.add, (scalar, a), {}),
        (torch.add, (scalar, scalar), {}),
        (torch.add, (a, a), {"alpha": 3}),
        (torch.add, (a.long(), 2**62), {}),
        (torch.add, (leaf, 1), {}),
        (torch.mul, (a, 2), {}),
        (torch.neg, (a,), {}),
        (torch.sum, (a,), {}),
        (torch.sum, (a, 1), {}),
        (torch.sum, (a, [0, 1]), {}),
        (torch.clamp, (a, None, 3), {}),
        (torch.clamp, (a, 1), {}),
        (torch.full, ([2, 2], 7.0), {}),
        (torch.ones, ([2],), {"dtype": torch.int64}),
        (torch.split, (a, 1), {}),
        (torch.is_floating_point, (a,), {}),
        (torch.matmul, (a, a.t()), {}),
    ]


def compare_with_local() -> int:
    """Each operator twice (the overload is sought, then kept), and all against a call made here."""
    import torch
    import torch.distributed.rpc as rpc

    def same(x, y) -> bool:
        if isinstance(x, (tuple, list)):
            return len(x) == len(y) and all(map(same, x, y))
        if not isinstance(x, torch.Tensor):
            return type(x) is type(y) and x == y
        return x.dtype == y.dtype and x.requires_grad == y.requires_grad and torch.equal(x, y)

    def by_torch(op, args, kwargs):
        upstream = rpc.api._invoke_rpc.__wrapped__
        return upstream(to, op, rpc.api.RPCExecMode.ASYNC, args, kwargs).wait()

    to, tried = peer(), 0
    for _ in range(2):
        for op, args, kwargs in arguments():
            here = op(*args, **kwargs)
            there = rpc.rpc_sync(to, op, args=args, kwargs=kwargs)
            later = rpc.rpc_async(to, op, args=args, kwargs=kwargs).wait()
            theirs = by_torch(op, args, kwargs)
            assert same(there, theirs), (op, args, kwargs, there, theirs)
            assert same(later, theirs), (op, args, kwargs, later, theirs)
            held = rpc.remote(to, op, args=args, kwargs=kwargs)
            assert held.owner_name() == to
            assert same(held.to_here(), theirs), (op, args, kwargs, held.to_here(), theirs)
            if not any(getattr(arg, "requires_grad", False) for arg in args):
                assert same(tuple(here) if isinstance(here, tuple) else here, there), (op, args)
            tried += 1
    return tried


def test_every_overload_answers_as_torch_does(group):
    assert group[0].call(compare_with_local) == 2 * len(arguments())


def failing(how: str):
    import torch
    import torch.distributed.rpc as rpc

    def by_torch(to, func, args=()):
        return rpc.api._invoke_rpc.__wrapped__(to, func, rpc.api.RPCExecMode.ASYNC, args).wait()

    call = {
        "sync": rpc.rpc_sync,
        "async": lambda *a, **k: rpc.rpc_async(*a, **k).wait(),
        "torch": by_torch,
    }[how]
    texts = []
    for args in ((torch.ones(2), torch.ones(3)), (torch.ones(2), object()), ()):
        with pytest.raises(Exception) as caught:
            call(peer(), torch.add, args=args)
        texts.append((caught.type.__name__, str(caught.value).split("0x")[0].splitlines()[0]))
    with pytest.raises(ValueError, match="to worker"):
        call(peer(), fail)
    return texts


def define_failing() -> None:
    """An operator of this process's, made once, that counts its runs and then fails."""
    if hasattr(define_failing, "library"):
        return
    import torch
    from torch.jit import _builtins

    define_failing.runs = 0
    define_failing.library = torch.library.Library("aten", "FRAGMENT")
    define_failing.library.define("weft_test_fails(Tensor x) -> Tensor")

    def run(x):
        define_failing.runs += 1
        x.add_(1)
        raise RuntimeError("the operator failed")

    define_failing.library.impl("weft_test_fails", run, "CompositeExplicitAutograd")
    _builtins._register_builtin(call_failing, "aten::weft_test_fails")


def runs_of_failing() -> int:
    return define_failing.runs


def call_failing(how: str) -> int:
    import torch
    import torch.distributed.rpc as rpc

    call = {"sync": rpc.rpc_sync, "async": lambda *a, **k: rpc.rpc_async(*a, **k).wait()}[how]
    before = rpc.rpc_sync(peer(), runs_of_failing)
    with pytest.raises(RuntimeError, match="the operator failed"):
        call(peer(), call_failing, args=(torch.ones(2),))
    return rpc.rpc_sync(peer(), runs_of_failing) - before


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_operator_that_fails_has_run_once(group, how):
    for member in group[:2]:
        member.call(define_failing)
    assert group[0].call(call_failing, how) == 1


def one_element_or_many() -> list[object]:
    """What a call brings before and after one with many elements."""
    import torch
    import torch.distributed.rpc as rpc

    one, many = torch.tensor([0.0]), torch.zeros(2, 2)
    calls = [
        (torch.as_tensor, (one,), (many,)),
        (torch.bernoulli, (many, one), (many, many)),
        (torch.normal, (many, one), (many, many)),
        (torch.randint_like, (many, torch.tensor([1])), (many, 1)),
    ]
    outcomes = []
    for op, with_one, with_many in calls:
        seen = []
        for args in (with_one, with_many, with_one):
            try:
                value = rpc.rpc_sync(peer(), op, args=args)
                seen.append((value.dtype, tuple(value.shape)))
            except RuntimeError as error:
                seen.append(str(error).splitlines()[0])
        outcomes.append((op.__name__, seen[0], seen[2]))
    return outcomes


def test_an_overload_does_not_depend_on_earlier_calls():
    with Group(2, rpc_timeout=30) as members:  # of which nobody has called anything
        for name, before, after in members[0].call(one_element_or_many):
            assert before == after, name
        members.shutdown()


def fail() -> None:
    raise ValueError("to worker")


@pytest.mark.parametrize("how", ["sync", "async"])
def test_failures_are_torchs_own(group, how):
    assert group[0].call(failing, how) == group[0].call(failing, "torch")


def futures_of_a_burst() -> int:
    import torch
    import torch.distributed.rpc as rpc

    def start(number: int):
        return rpc.rpc_async(peer(), torch.add, args=(torch.zeros(1), number))

    assert [value.item() for value in torch.futures.wait_all([start(i) for i in range(500)])] == [
        *range(500)
    ]
    future = start(7)
    assert isinstance(future, torch._C.Future)  # as torch's own
    assert future.wait() is future.value()
    assert future.then(lambda done: done.value().item() + 1).wait() == 8
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(30)
    mixed = [start(1), rpc.rpc_async(peer(), echo, args=(2,)), start(3)]
    assert [int(value) for value in torch.futures.wait_all(mixed)] == [1, 2, 3]
    with pytest.raises(RuntimeError, match="size"):
        rpc.rpc_async(peer(), torch.add, args=(torch.ones(2), torch.ones(3))).wait()
    return len(mixed)


def test_futures_of_operators_are_futures(group):
    assert group[0].call(futures_of_a_burst) == 3


def many_from_callbacks(count: int) -> int:
    """Each callback makes the next call."""
    import torch
    import torch.distributed.rpc as rpc

    ended = torch.futures.Future()

    def go_on(done) -> None:
        value = int(done.value())
        if value == count:
            ended.set_result(value)
        else:
            step(value)

    def step(value: int) -> None:
        rpc.rpc_async(peer(), torch.add, args=(torch.tensor([value]), 1)).then(go_on)

    step(0)
    return ended.wait()


def test_callbacks_of_futures_may_make_calls(group):
    assert group[0].call(many_from_callbacks, 200) == 200


def started_and_let_go(count: int) -> int:
    import gc

    import torch
    import torch.distributed.rpc as rpc

    for _ in range(count):
        rpc.rpc_async(peer(), torch.add, args=(torch.ones(1), 1))
    gc.collect()
    return int(rpc.rpc_sync(peer(), torch.add, args=(torch.ones(1), 1)))


def test_futures_that_nobody_keeps_do_no_harm(group):
    assert group[0].call(started_and_let_go, 200) == 2


# rpc.functions.async_execution, without importing torch here.
def relay(to: str, value: float):
    import torch
    import torch.distributed.rpc as rpc

    return rpc.rpc_async(to, torch.add, args=(torch.zeros(1), value))


relay._wrapped_async_rpc_function = relay


def through_a_relay() -> list[float]:
    import torch.distributed.rpc as rpc

    me = rpc.get_worker_info().name
    rref = rpc.remote(peer(), relay, args=(me, 4.0))
    there = [rpc.rpc_sync(peer(), relay, args=(me, 3.0)), rref.to_here()]
    there.append(rpc.rpc_sync(peer(), local_value, args=(rref,)))
    return [value.item() for value in there]


def local_value(rref):
    return rref.local_value()


def test_a_future_may_be_an_answer(group):
    assert group[0].call(through_a_relay) == [3.0, 4.0, 4.0]


def failing_remotely() -> list[str]:
    """What an RRef of a failed call says, and one whose operator there is not."""
    import torch
    import torch.distributed.rpc as rpc

    texts = []
    for remote in (rpc.api._invoke_remote_builtin, rpc.api._invoke_remote_builtin.__wrapped__):
        with pytest.raises(RuntimeError) as caught:
            to = rpc.get_worker_info(peer())
            remote(to, "aten::add", -1.0, torch.ones(2), torch.ones(3)).to_here()
        texts.append(str(caught.value).splitlines()[0])
        with pytest.raises(RuntimeError, match=r"match (any schema|operator name)"):
            remote(to, "aten::add", -1.0, torch.ones(2), object())
    return texts


def test_failures_of_remote_are_torchs_own(group):
    ours, theirs = group[0].call(failing_remotely)
    assert "size" in ours
    assert ours == theirs


def remote_here() -> float:
    import torch
    import torch.distributed.rpc as rpc

    me = rpc.get_worker_info().name
    return rpc.remote(me, torch.add, args=(torch.ones(1), 2)).to_here().item()


def test_remote_to_oneself(group):
    assert group[0].call(remote_here) == 3.0


def remote_of_nothing() -> None:
    """torch's own remote() of an operator without a result ends the process."""
    import torch
    import torch.distributed.rpc as rpc

    for to in (peer(), rpc.get_worker_info().name):
        with pytest.raises(RuntimeError, match="returns nothing that an RRef could refer to"):
            rpc.remote(to, torch._assert_async, args=(torch.ones(1),))


def test_remote_of_an_operator_without_a_result_is_refused(group):
    group[0].call(remote_of_nothing)


def there_and_back(hops: int) -> list[str]:
    import torch.distributed.rpc as rpc

    me = rpc.get_worker_info().name
    if hops == 0:
        return [me]
    return [me, *rpc.rpc_sync(peer(), there_and_back, args=(hops - 1,))]


def test_a_served_call_may_call_on(group):
    assert len(group[0].call(there_and_back, 20)) == 21


class CallsWhilePickled:
    """Its pickling makes calls of its own, waited for and not."""

    def __reduce__(self):
        import torch
        import torch.distributed.rpc as rpc

        before = rpc.rpc_async(peer(), torch.add, args=(torch.ones(1), 1))
        value = rpc.rpc_sync(peer(), torch.neg, args=(torch.ones(1),))
        after = rpc.rpc_async(peer(), torch.add, args=(torch.ones(1), 2))
        return (tuple, ((before.wait().item(), value.item(), after.wait().item()),))


def echo(value):
    return value


def call_with_calls():
    import torch.distributed.rpc as rpc

    return [rpc.rpc_sync(peer(), echo, args=(CallsWhilePickled(),)) for _ in range(20)]


def test_arguments_may_make_calls_while_they_are_pickled(group):
    assert group[0].call(call_with_calls) == [(2.0, -1.0, 3.0)] * 20


def time_out() -> tuple[str, float, bool]:
    """A call that times out, one while its answer is on the way, and one more."""
    import torch
    import torch.distributed.rpc as rpc

    rpc.rpc_sync(peer(), close_gate)
    try:
        text = rpc.rpc_sync(peer(), wait_for_gate, timeout=0.05)
    except RuntimeError as error:
        text = str(error)
    opened = rpc.rpc_async(peer(), open_gate)
    added = rpc.rpc_sync(peer(), torch.add, args=(torch.ones(1), 1)).item()
    with torch.inference_mode():
        echoed = rpc.rpc_sync(peer(), echo, args=(True,))
    opened.wait()
    return text, added, echoed


def test_a_call_that_times_out_leaves_nothing_behind(group):
    """The late answer is not taken for that of the next call."""
    for _ in range(3):
        text, *answers = group[0].call(time_out)
        assert "RPC ran for more than set timeout (50 ms)" in text
        assert answers == [2, True]


def from_threads(count: int) -> int:
    import torch
    import torch.distributed.rpc as rpc

    right = []

    def client(number: int) -> None:
        for i in range(200):
            value = number * 1000 + i
            right.append(
                rpc.rpc_sync(peer(), torch.add, args=(torch.zeros(1), value)).item() == value
            )
            right.append(rpc.rpc_sync(peer(), echo, args=(value,)) == value)

    in_threads(*(functools.partial(client, number) for number in range(count)))
    assert all(right)
    return len(right)


def test_many_threads_each_get_their_own_answers(group):
    assert group[0].call(from_threads, 8) == 8 * 400


def backward(how: str) -> list[float]:
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    leaf = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        call = {"sync": rpc.rpc_sync, "async": lambda *a, **k: rpc.rpc_async(*a, **k).wait()}[how]
        out = call(peer(), torch.mul, args=(leaf, 3))
        dist_autograd.backward(context, [out.sum()])
        return dist_autograd.get_gradients(context)[leaf].tolist()


@pytest.mark.parametrize("how", ["sync", "async"])
def test_distributed_autograd_goes_through_it(group, how):
    assert group[0].call(backward, how) == [3.0, 3.0]


def wait_at_the_gate() -> str:
    import torch.distributed.rpc as rpc

    rpc.rpc_sync(_name_of(2), wait_for_gate)
    return "answered"


def test_a_waiting_thread_hears_of_a_lost_peer():
    with Group(3, rpc_timeout=30) as members:
        members[0].start(wait_at_the_gate)
        members[2].call(wait_until_begun)
        members[2].kill()
        assert "worker 'worker2' (rank 2)" in members[0].failure().message
