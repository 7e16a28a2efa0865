"""How the simulated protocols grow with the number of ranks."""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scale import costs
from bench.scale.__main__ import PROTOCOLS, simulate


@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_messages_of_a_rank_grow_no_faster_than_the_logarithm(name):
    known = costs.Costs()
    most = {ranks: max(simulate(name, ranks, known).messages) for ranks in (16, 256)}
    # From 16 to 256 ranks the logarithm doubles.
    assert most[256] <= 2 * most[16] + 8
    # Far from the ranks' number in any case.
    assert statistics.median(simulate(name, 256, known).messages) < 40 * math.log2(256)


def test_the_simulated_ranks_all_end_without_the_dead():
    run = simulate("shutdown, eight dead", 64, costs.Costs())
    assert sum(count > 0 for count in run.asked) == 56
    assert run.seconds < 10
