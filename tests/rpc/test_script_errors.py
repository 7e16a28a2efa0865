"""A failed TorchScript call says why, and leaves nothing behind for the next one."""

from enum import Enum

import pytest
import torch
from torch import Tensor
from workers import Group


class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("odd")


@torch.jit.ignore
def odd(x: Tensor) -> Tensor:
    return Odd.apply(x)


@torch.jit.script
def backward_that_fails(x: Tensor) -> Tensor:
    loss = odd(x.requires_grad_()).sum()
    loss.backward()
    return loss


def add(x: int, y: int) -> int:
    return x + y


def fail_and_go_on(to: str, rounds: int) -> list:
    import torch.distributed.rpc as rpc

    sums = []
    for number in range(rounds):
        try:
            rpc.rpc_sync(to, backward_that_fails, args=(torch.ones(2),))
        except RuntimeError as error:
            assert "odd" in str(error)
        else:
            raise AssertionError("the backward did not fail")
        sums.append(rpc.rpc_sync(to, add, args=(number, 1)))
    return sums


def test_the_next_request_does_not_get_the_error():
    with Group(2) as group:
        group[1].call(add, 0, 0)  # TorchScript's functions have to be known where they run
        assert group[0].call(fail_and_go_on, "worker1", 20) == list(range(1, 21))
        group.shutdown()


@torch.jit.script
class Point:
    def __init__(self, x: int):
        self.x = x


@torch.jit.script
def make_point(x: int) -> Point:
    return Point(x)


class Colour(Enum):
    RED = 1


@torch.jit.script
def x_of(points: list[Point]) -> int:
    return points[0].x


@torch.jit.script
def paint(number: int, colour: Colour) -> int:
    return number + colour.value


def send_objects(to: str) -> list[str]:
    import torch.distributed.rpc as rpc

    texts = []
    for call, args in ((x_of, ([Point(3)],)), (paint, (1, Colour.RED))):
        with pytest.raises(RuntimeError) as error:
            rpc.rpc_sync(to, call, args=args)
        texts.append(str(error.value))
    return texts


def test_an_argument_that_torch_cannot_send_is_named():
    with Group(2) as group:
        group[1].call(add, 0, 0)  # as above
        points, colour = group[0].call(send_objects, "worker1")
        assert "x_of cannot be called on another worker: 'points' has an object" in points
        assert "paint cannot be called on another worker: 'colour' has an object" in colour
        group.shutdown()


def unreadable_answer(to: str, how: str) -> str:
    import torch.distributed.rpc as rpc

    call = {"sync": rpc.rpc_sync, "async": lambda *a, **k: rpc.rpc_async(*a, **k).wait()}[how]
    with pytest.raises(RuntimeError) as error:
        call(to, make_point, args=(3,))
    assert rpc.rpc_sync(to, add, args=(3, 4)) == 7
    return str(error.value)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_answer_that_cannot_be_read_is_an_error(how):
    with Group(2) as group:
        group[1].call(add, 0, 0)  # as above
        for to in ("worker1", "worker0"):
            text = group[0].call(unreadable_answer, to, how)
            assert text.startswith(f"cannot read the answer of worker '{to}' to __torch__.")
            assert "make_point: it has an object of a TorchScript class" in text
        group.shutdown()
