"""The pipe benchmark's own parts: targets, ratios, files; and that each side answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.pipe import metrics, report, stages  # noqa: E402
from bench.pipe.peer import Peer  # noqa: E402

VERSIONS = {"weft": "2.11.0", "torch": "2.3.1"}


def rounds():
    name = "a task, Python stage, forward us"
    overlap = {
        f"overlap, busy, {way}, m={m} x": 1.5
        for way in ("forward", "both ways")
        for m in (2, 4, 8, 16)
    }
    count = {"graphs after forward, never count": 16}
    return {
        "weft": [{name: us, **overlap, **count} for us in (8.0, 30.0, 9.0)],
        "torch": [{name: us, **count} for us in (100.0, 150.0, 240.0)],
    }


def test_medians_ratios_and_what_misses_its_target():
    text = report.table(rounds(), VERSIONS)
    row = next(line for line in text.splitlines() if "forward us" in line)
    assert "| 9 | 150 | at most 10 | 0.08 (0.04 to 0.20) |" in row
    missed = [line for line in text.splitlines() if "(!)" in line]
    # 1.5 of 1.6 at m=4 is enough, of 1.78 and 1.88 it isn't; more than ideal is noise.
    assert ["m=8" in line or "m=16" in line for line in missed] == [True] * 4


def test_the_ideal_is_gpipes():
    assert report.ideal("overlap, busy, forward, m=16 x") == pytest.approx(32 / 17)
    assert report.ideal("overlap, busy, forward, m=2 x") == pytest.approx(4 / 3)
    for name in metrics.steady_names("busy", "both ways")[:2]:
        assert report.ideal(name) == pytest.approx(16 / 9)
    assert report.ideal("a task, Python stage, forward us") is None


def test_a_mini_batch_is_judged_by_the_peers_of_the_same_round():
    _, slowest, name = metrics.steady_names("busy", "forward")
    found = {
        "weft": [{slowest: 1.55, name: 90.0}, {slowest: 1.7, name: 110.0}],
        "pipelining": [{name: 100.0}, {name: 100.0}],
    }
    rows = {row.name: row for row in report.judged(found)}
    assert rows[name].times == pytest.approx(1.0) and rows[name].met
    assert rows[slowest].times == pytest.approx((16 / 9 / 1.55 + 16 / 9 / 1.7) / 2)
    assert rows[slowest].met  # 1.62 of 1.78


def test_what_is_written(tmp_path):
    report.write(tmp_path, rounds(), VERSIONS)
    data = json.loads((tmp_path / "pipe.json").read_text())
    assert data["versions"] == VERSIONS and data["ratios"][0]["ratio"] == pytest.approx(0.08)
    assert (tmp_path / "pipe.png").stat().st_size > 10_000


def test_by_hand_is_the_sequential():
    layers = [stages.tiny() for _ in range(2)]
    batch = torch.randn(10, stages.TINY)
    torch.testing.assert_close(metrics.by_hand(layers, 3)(batch), layers[1](layers[0](batch)))


def test_graphs_are_counted():
    class Hand:
        def pipe(self, layers, chunks, mode):
            return metrics.by_hand(layers, chunks)

    figures = metrics.memory(Hand())
    assert figures["graphs after forward, never count"] == 16
    assert figures["graphs after backward, never count"] == 0


@pytest.mark.parametrize("side", ["weft", "pipelining"])
def test_a_side_answers(side):
    peer = Peer(side)
    try:
        assert peer.version == torch.__version__
        figures = peer.measure("memory")
        if side == "weft":
            after = [figures[f"graphs after forward, {mode} count"] for mode in metrics.MODES]
            assert after == [16, 2, 0]
        else:
            assert figures == {}
    finally:
        peer.close()
