"""Partitions on CUDA. Neighbours on one device are one partition, so stages alternate with the CPU."""

from __future__ import annotations

import pytest
import torch
from pipe_models import MODES, assert_same, gradients, make_pipe, mlp, plain_copy
from torch import nn

from weft.pipe import WithDevice

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none here"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["inline", "threads"])
def test_cuda_and_cpu_in_turn(mode, way):
    plain = mlp()
    model = plain_copy(plain)
    model[0].cuda()
    model[4].cuda()
    pipe = make_pipe(model, way, chunks=3, checkpoint=mode)
    assert [device.type for device in pipe.devices] == ["cuda", "cpu", "cpu", "cpu", "cuda"]
    x = torch.randn(6, 4)
    for _ in range(3):
        output = pipe(x.cuda()).local_value()
        assert output.is_cuda
        output.square().sum().backward()
        plain(x).square().sum().backward()
    assert_same([g.cpu() for g in gradients(pipe)], gradients(plain), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("mode", ["except_last", "always"])
def test_dropout_is_repeated_on_cuda(mode):
    found = []
    for checkpoint in ("never", mode):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 64, device="cuda"),
            WithDevice(nn.Dropout(0.5), "cuda:0"),
            nn.Linear(64, 2, device="cuda"),
        )
        pipe = make_pipe(model, chunks=4, checkpoint=checkpoint)
        torch.manual_seed(1)
        pipe(torch.ones(8, 4, device="cuda")).local_value().square().sum().backward()
        found.append(gradients(pipe))
    assert_same(found[0], found[1])


@pytest.mark.parametrize("mode", MODES)
def test_deferred_batch_norm_on_mixed_devices(mode):
    plain = nn.Sequential(nn.BatchNorm1d(4), nn.Sequential(nn.Tanh(), nn.BatchNorm1d(4)))
    model = plain_copy(plain)
    model[1].cuda()
    pipe = make_pipe(model, "threads", chunks=3, checkpoint=mode, deferred_batch_norm=True)
    x = torch.randn(8, 4) * 2 + 5
    plain(x)
    pipe(x).local_value().sum().backward()
    torch.testing.assert_close(pipe[0].running_var, plain[0].running_var)
    assert pipe[2].running_var.is_cuda
    assert pipe[2].num_batches_tracked == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices():
    plain = mlp()
    model = nn.Sequential(
        nn.Sequential(*plain_copy(plain)[:2]).to("cuda:0"),
        nn.Sequential(*plain_copy(plain)[2:]).to("cuda:1"),
    )
    pipe = make_pipe(model, "threads", chunks=3)
    x = torch.randn(6, 4)
    pipe(x.to("cuda:0")).local_value().sum().backward()
    plain(x).sum().backward()
    assert_same([g.cpu() for g in gradients(pipe)], gradients(plain), atol=1e-3, rtol=1e-3)
