"""Cutting a model: the exact split, what is measured, where the parts go."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

from weft.pipe._even_split import split_evenly
from weft.pipe._profile import saved_bytes, seconds
from weft.pipe.balance import balance_by_size, balance_by_time, place
from weft.pipe.skip import pop, skippable, stash

CPU = torch.device("cpu")


def every_split(layers: int, parts: int):
    for cuts in combinations(range(1, layers), parts - 1):
        edges = [0, *cuts, layers]
        yield [b - a for a, b in pairwise(edges)]


def loads(costs, split):
    result, begin = [], 0
    for row, count in zip(costs, split, strict=True):
        result.append(sum(row[begin : begin + count]))
        begin += count
    return result


@pytest.mark.parametrize("seed", range(60))
def test_no_split_has_a_cheaper_dearest_part(seed):
    rng = random.Random(seed)
    layers = rng.randint(1, 8)
    parts = rng.randint(1, layers)
    alike = rng.random() < 0.5
    row = [rng.randint(0, 9) for _ in range(layers)]
    costs = [row if alike else [rng.randint(0, 9) for _ in row] for _ in range(parts)]
    got = split_evenly(costs)
    assert len(got) == parts and sum(got) == layers and min(got) >= 1
    best = min(max(loads(costs, split)) for split in every_split(layers, parts))
    assert max(loads(costs, got)) == best
    evenest = min(
        sum(load**2 for load in loads(costs, split))
        for split in every_split(layers, parts)
        if max(loads(costs, split)) == best
    )
    assert sum(load**2 for load in loads(costs, got)) == evenest


def test_split_of_the_known_case():
    row = [1, 2, 3, 4, 5, 6]
    assert split_evenly([row] * 2) == [4, 2]
    assert split_evenly([row] * 6) == [1] * 6


class Costs(nn.Module):
    """Takes its time forward, and again backward, on a clock that nothing else moves."""

    clock = 0.0

    def __init__(self, ms: float) -> None:
        super().__init__()
        self.ms = ms

    def spend(self, *_):
        Costs.clock += self.ms / 1e3

    def forward(self, x):
        self.spend()
        if x.requires_grad:
            x.register_hook(self.spend)
        return x * 1


def test_by_time(monkeypatch):
    monkeypatch.setattr("time.perf_counter", lambda: Costs.clock)
    model = nn.Sequential(*(Costs(ms) for ms in (2, 2, 2, 2, 2, 11)))
    sample = torch.ones(1, requires_grad=True)
    assert seconds(model, sample, CPU, 0.0) == pytest.approx([4e-3] * 5 + [22e-3])
    assert balance_by_time(2, model, sample, timeout=0) == [5, 1]


def test_by_size_counts_activations_and_parameters():
    def layer(width):
        return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 64))

    model = nn.Sequential(*(layer(width) for width in range(64, 448, 64)))
    assert balance_by_size(2, model, torch.ones(64, 64), param_scale=0) == [4, 2]
    heavy = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4000), nn.Linear(4000, 1))
    assert balance_by_size(2, heavy, torch.ones(1, 4), param_scale=4) == [3, 1]


def test_saved_bytes_are_exact():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Identity())
    x = torch.ones(10, 8)
    # Linear saves its input, Tanh its output; parameters are counted apart.
    assert saved_bytes(model, (x,), CPU, 0.0) == [10 * 8 * 4, 10 * 16 * 4, 0]
    assert saved_bytes(model, (x,), CPU, 2.0)[0] == 10 * 8 * 4 + 2 * 4 * (8 * 16 + 16)
    assert saved_bytes(model, (x,), torch.device("meta"), 0.0) == [320, 640, 0]


def test_chunks_shrink_the_activations():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    whole = saved_bytes(model, (torch.ones(16, 8),), CPU, 0.0)
    quarter = saved_bytes(model, (torch.ones(4, 8),), CPU, 0.0)
    assert [a / b for a, b in zip(whole, quarter, strict=True)] == [4, 4]
    assert balance_by_size(2, model, torch.ones(16, 8), chunks=4) == [1, 1]


def test_profiling_leaves_the_model_and_the_random_numbers_alone():
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.ReLU(inplace=True)
    )
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with torch.no_grad():
        balance_by_time(2, model, torch.randn(6, 4), timeout=0)
    balance_by_size(2, model, torch.ones(6, 4))
    torch.manual_seed(3)
    balance_by_time(2, model, torch.ones(6, 4), timeout=0)
    assert torch.equal(torch.rand(1), expected)
    assert not model.training and all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_several_arguments_skips_and_integers():
    @skippable(stash=["s"])
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, tokens, scale):
            x = self.table(tokens)
            yield stash("s", x)
            return x * scale, tokens

    class Second(nn.Module):
        def forward(self, x, tokens):
            return x * 2

    @skippable(pop=["s"])
    class Third(nn.Module):
        def forward(self, x):
            return x + (yield pop("s"))

    model = nn.Sequential(First(), Second(), Third())
    sample = (torch.arange(10).view(5, 2), 3)
    assert sum(balance_by_time(2, model, sample, timeout=0)) == 3
    assert sum(balance_by_size(2, model, sample)) == 3
    assert len(seconds(model, sample, CPU, 0.0)) == 3


def test_devices_of_their_own():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sample = torch.ones(2, 4)
    assert balance_by_time(2, model, sample, timeout=0, device=["cpu", "cpu"]) == [1, 1]
    with pytest.raises(ValueError, match="2 partitions, but 1 devices"):
        balance_by_time(2, model, sample, device=["cpu"])


def test_errors_name_what_is_wrong():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    with pytest.raises(TypeError, match=r"module must be nn\.Sequential"):
        balance_by_time(1, nn.Linear(1, 1), torch.ones(1))
    with pytest.raises(ValueError, match="can't cut 2 layers into 3 partitions"):
        balance_by_time(3, model, torch.ones(1, 4))
    with pytest.raises(RuntimeError, match=r"layer '1' failed on cpu: .*shapes"):
        balance_by_time(2, model, torch.ones(1, 4), timeout=0)
    with pytest.raises(TypeError, match="must hold a tensor"):
        balance_by_time(2, model, (1,))
    with pytest.raises(ValueError, match="number of chunks must be positive integer"):
        balance_by_size(2, model, torch.ones(1, 4), chunks=0)


def test_place_moves_the_parts():
    layers = [nn.Linear(2, 2) for _ in range(5)]
    placed = place(nn.Sequential(*layers), [2, 3], ["cpu", "meta"])
    assert [len(part) for part in placed] == [2, 3]
    assert [next(part.parameters()).device.type for part in placed] == ["cpu", "meta"]
    assert placed[1][0] is layers[2]


def test_place_refuses_what_does_not_fit():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="2 partitions, but 1 devices"):
        place(model, [1, 1], ["cpu"])
    for balance in ([1, 2], [2, 0], [1]):
        with pytest.raises(ValueError, match="does not cut 2 layers"):
            place(model, balance, ["cpu"] * len(balance))
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match="duplicate parameters on distinct devices"):
        place(model, [1, 1], ["cpu", "meta"])
    assert model[0].weight.device.type == "cpu"
