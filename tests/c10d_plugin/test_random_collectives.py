"""OK implies right: random operations of all kinds, with aborts, stops, deaths and errors among them.

WEFT_TEST_SEED chooses the first case's seed (it is printed), WEFT_TEST_CASES how many in all,
WEFT_TEST_KIND one kind of those in case_kinds.py. One case again, as a failure names it:
WEFT_TEST_SEED=<its seed> WEFT_TEST_CASES=1 pytest -k "random and <its path>"
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import pytest
from random_collectives import Runner
from test_hosts import hosts  # noqa: F401

COUNT = int(os.environ.get("WEFT_TEST_CASES", "200"))
ENOUGH = 5  # cases that fail; then it stops
SHARES = {"shared memory": 0.6, "messages": 0.25, "hosts": 0.15}
pytestmark = pytest.mark.timeout(300 + 5 * COUNT)


def run_cases(path: str, namespaces: Sequence[str] = ()) -> None:
    seed = int(os.environ.get("WEFT_TEST_SEED", "1"))
    kind = os.environ.get("WEFT_TEST_KIND")
    count = max(1, round(COUNT * SHARES[path]))
    print(f"WEFT_TEST_SEED={seed}, {count} cases through {path}", flush=True)
    runner, failures = Runner(path, namespaces), []
    started = time.monotonic()
    try:
        for case in range(count):
            if found := runner.run(seed + case, kind):
                failures.append("\n  ".join(found[:12]))
            if len(failures) >= ENOUGH:
                break
            if case % 500 == 499:
                print(f"{case + 1} cases, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        runner.close()
    print(f"{runner.number} cases in {time.monotonic() - started:.1f} s: {runner.counts}")
    assert not failures, f"{len(failures)} of {runner.number} cases failed:\n" + "\n".join(failures)


@pytest.mark.parametrize("path", ["shared memory", "messages"])
def test_random_operations(path):
    run_cases(path)


def test_random_operations_between_hosts(hosts):  # noqa: F811
    run_cases("hosts", hosts)
