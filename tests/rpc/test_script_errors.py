"""A failed TorchScript request leaves nothing behind for the next one."""

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
