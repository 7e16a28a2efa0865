"""Scripted and traced modules among a call's arguments, in a process that has sent none before."""

from __future__ import annotations

from workers import Group


def run(modules, x):
    return modules[0](x)


def modules_there() -> None:
    import torch
    import torch.distributed.rpc as rpc

    scripted, x = torch.jit.script(torch.nn.Linear(3, 2)), torch.randn(1, 3)
    traced = torch.jit.trace(torch.nn.Linear(3, 2), x)
    for module in (scripted, traced):
        torch.testing.assert_close(rpc.rpc_sync("worker1", run, args=([module], x)), module(x))


def test_modules_arrive():
    with Group(2) as group:
        group[0].call(modules_there)
