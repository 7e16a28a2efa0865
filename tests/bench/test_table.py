"""The benchmarks' own parts: limits, steal, aims, verdicts, ratios."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import aims, limits, report, steal
from bench.against.__main__ import worse
from bench.collectives import operations
from bench.rpc import turns

STAT = "cpu  100 0 50 800 10 0 5 35 7 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


def test_steal_is_its_share_of_all_time():
    assert steal.counters(STAT) == (35, 1000)
    assert steal.counters("cpu 1 2 3\n") == (0, 0)  # a kernel that says less
    assert steal.share((35, 1000), (45, 1100)) == pytest.approx(0.1)


def test_a_round_under_steal_is_measured_again():
    # Readings before and after each attempt: 20%, 10%, 2% of the time in between.
    readings = iter([(0, 0), (20, 100), (20, 100), (30, 200), (30, 200), (32, 300)])
    rounds = iter(["first", "second", "third"])
    assert steal.quiet_round(lambda: next(rounds), lambda: next(readings)) == ("third", 0.02)


def test_a_round_is_measured_again_a_few_times_only_and_the_best_one_counts():
    readings = iter([(0, 0), (30, 100), (30, 100), (40, 200), (40, 200), (60, 300)])
    rounds = iter(["first", "second", "third"])
    measured, lost = steal.quiet_round(lambda: next(rounds), lambda: next(readings))
    assert (measured, lost) == ("second", pytest.approx(0.1))
    assert "1 above 5%" in steal.summary([0.01, lost])


def test_the_limits_of_this_machine():
    found = limits.measure()
    names = {limits.ROUND_TRIP, limits.IN_FLIGHT}
    names |= {limits.memcpy(label) for label in limits.SIZES}
    names |= {limits.tcp(label) for label in limits.TCP_SIZES}
    assert set(found) == names
    assert all(value > 0 for value in found.values())


def judge_one(name: str, ours: float, bounds: dict[str, float], theirs: float) -> report.Judged:
    [row] = report.judge("rpc", "free", [{name: ours}], turns.limit, [bounds], [{name: theirs}])
    return row


def test_a_call_is_judged_by_the_raw_round_trip():
    row = judge_one("rpc_sync add p50 us", 30.0, {limits.ROUND_TRIP: 10.0}, 120.0)
    assert (row.limit, row.times, row.met, row.cost) == (10.0, 3.0, True, 0.25)
    assert judge_one("rpc_sync add p50 us", 40.0, {limits.ROUND_TRIP: 10.0}, 120.0).met is False


def test_a_rate_is_judged_by_its_time():
    bounds = {limits.memcpy("16 MiB"): (16 << 20) / 40e9 * 1e6}  # 40 GB/s
    row = judge_one("send 16 MiB gb_s", 20.0, bounds, 5.0)
    assert row.limit == pytest.approx(40)
    assert row.times == pytest.approx(2) and row.met is False
    assert row.cost == pytest.approx(0.25)
    text = report.judged_table([row], "TensorPipe")
    assert "**2.00**" in text and "short" in text and "1.3 times memcpys" in text
    assert report.verdicts([row]).startswith("0 of 1 aims met\n- short: rpc, send 16 MiB")


def test_a_p99_is_judged_by_its_own_p50():
    figures = [{"python function p50 us": 20.0, "python function p99 us": 50.0}]
    found = report.judge("rpc", "free", figures, turns.limit, [{limits.ROUND_TRIP: 10.0}])
    assert [(row.times, row.met) for row in found] == [(2.0, True), (2.5, False)]


def test_what_has_no_limit_has_no_verdict():
    row = judge_one("threads per process count", 12.0, {}, 44.0)
    assert (row.limit, row.times, row.aim, row.met) == (None, None, "", None)


def test_each_aim_is_of_some_figure():
    assert aims.aim_of("collectives-4", "all_reduce 16 MiB us").most == 1.3
    assert aims.aim_of("collectives-4", "all_reduce 1 MiB us") is None
    assert aims.aim_of("tcp", "send 16 MiB gb_s").most == 1.15
    assert aims.aim_of("pipe", "overlap, busy, forward, m=8 x").most == pytest.approx(1 / 0.9)


def test_bytes_that_a_collective_must_move():
    moved = operations.bytes_moved
    assert moved("all_reduce", 100, 2) == 100
    assert moved("all_reduce", 100, 4) == 150
    assert moved("reduce_scatter", 100, 4) == 75
    assert moved("broadcast", 100, 4) == moved("all_gather", 100, 4) == 100


def row_of(name: str, ratios: list[float]) -> report.Row:
    [row] = report.rows([{name: ratio} for ratio in ratios], [{name: 1.0}] * len(ratios))
    return row


@pytest.mark.parametrize(
    ("name", "ratios", "expected"),
    [
        ("a p50 us", [1.2, 1.1, 1.3], True),
        ("a p50 us", [1.2, 0.99, 1.3], False),  # one round the other way: noise
        ("a p50 us", [1.01, 1.02, 1.03], False),  # by a hair
        ("a gb_s", [0.8, 0.9, 0.7], True),
        ("a gb_s", [1.2, 1.1, 1.3], False),
    ],
)
def test_what_is_slower_beyond_its_noise(name, ratios, expected):
    assert worse(row_of(name, ratios)) is expected
