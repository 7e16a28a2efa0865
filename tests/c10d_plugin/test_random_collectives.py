"""OK implies right: random operations of all kinds, with aborts, stops, deaths and errors among them.

WEFT_TEST_SEED chooses the first case's seed (printed otherwise), WEFT_TEST_CASES how many in all.
One case again: WEFT_TEST_SEED=<its seed> WEFT_TEST_CASES=1 pytest -k "random and <path>".
"""

from __future__ import annotations

import os
import random
import time

import pytest
from random_collectives import CASES, Runner
from test_hosts import hosts  # noqa: F401

CASES_IN_ALL = int(os.environ.get("WEFT_TEST_CASES", "200"))
ENOUGH = int(os.environ.get("WEFT_TEST_FAILURES", "5"))  # cases that fail; then it stops
SHARES = {"shared memory": 0.6, "messages": 0.25, "hosts": 0.15}


def run_cases(path: str, hosts=()) -> None:  # noqa: F811
    seed = int(os.environ.get("WEFT_TEST_SEED", random.randrange(1 << 30)))
    count = max(1, round(CASES_IN_ALL * SHARES[path]))
    print(f"WEFT_TEST_SEED={seed}, {count} cases through {path}", flush=True)
    only = os.environ.get("WEFT_TEST_KIND")
    runner, failures = Runner(path, hosts), []
    started = time.monotonic()
    try:
        for case in range(count):
            if found := runner.run(seed + case, only):
                failures.append("\n  ".join(found[:12]))
                print(failures[-1], flush=True)
            if len(failures) >= ENOUGH:
                break
            if case % 1000 == 999:
                print(f"{case + 1} cases, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        runner.close()
    print(f"{runner.number} cases in {time.monotonic() - started:.1f} s: {runner.counts}")
    assert not failures, f"{len(failures)} cases of {runner.number} failed:\n" + "\n".join(failures)


pytestmark = pytest.mark.timeout(120 + 5 * CASES_IN_ALL)


@pytest.mark.parametrize("path", ["shared memory", "messages"])
def test_random_operations(path):
    assert set(SHARES) >= {path} and CASES
    run_cases(path)


def test_random_operations_between_hosts(hosts):  # noqa: F811
    run_cases("hosts", hosts)
