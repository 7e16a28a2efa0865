"""Runs PyTorch's acceptance suites on Weft. See README.md in this folder."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if p != str(_HERE)]

from conformance import pool, sample, skips  # noqa: E402 - only after the path is set
from conformance.cases import FORK, FORK_FULL_EXIT, SKIPPED, SPAWN, Case, Verdict  # noqa: E402
from conformance.report import Report  # noqa: E402

_DEFAULT_GROUPS = ("generic", "agent", "faulty", "process_group")
NONE_SELECTED = 5  # as pytest's exit code
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--backend", choices=("WEFT", "TENSORPIPE"), default="WEFT")
    add(
        "--suite",
        action="append",
        help="a suite, or a group: generic, agent, faulty, process_group, cuda",
    )
    add(
        "--only",
        action="append",
        default=[],
        type=re.compile,
        metavar="REGEX",
        help="tests whose Suite.test contains it; given twice, both",
    )
    add("--short", action="store_true", help="the fixed sample for other versions of PyTorch")
    add(
        "--spawn",
        action="store_true",
        help="the fixed samples whose ranks are spawned, or forked and ended as a user's process",
    )
    add("--all", action="store_true", help="with --spawn: every test, and spawned")
    add("--jobs", type=int, default=2, help="tests at a time (default 2)")
    add("--timeout", type=float, help="seconds a test may take (default 120; spawned 300)")
    add("--repeat", type=int, default=1, help="run each selected test so many times")
    add("--json", type=Path, metavar="OUT", help="write the result there as well")
    add("--logs", type=Path, metavar="DIR", help="keep the whole output of failed tests there")
    add("--list", action="store_true", help="print the selected tests and stop")
    add("--catalogue", default="conformance.suites", help="the module whose load() names the tests")
    return parser.parse_args(arguments)


def prepare(options: argparse.Namespace) -> tuple[list[Case], list[str]]:
    """Imports torch and the suites once, in this process: every test is forked from it."""
    for name in _LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Tests let rank A use rank B's process group as soon as A's own init_process_group returned; the
    # barrier makes B's default group exist by then (seen with TensorPipe too, once in 50 runs).
    os.environ.setdefault("TORCH_DIST_INIT_BARRIER", "1")
    os.environ.setdefault("PYTORCH_PRINT_REPRO_ON_FAILURE", "0")
    if options.backend == "TENSORPIPE":
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = (
            "0"  # the baseline runs without Weft's patches
        )
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(10**6)  # the runner's limit governs
    catalogue: ModuleType = importlib.import_module(options.catalogue)
    return catalogue.load(options.backend)


def select(cases: list[Case], options: argparse.Namespace, missing: list[str]) -> list[Case]:
    """The cases that the command line asks for; notes in `missing` what a sample names in vain."""
    wanted = set(options.suite or _DEFAULT_GROUPS)
    if unknown := wanted - {case.suite for case in cases} - {case.group for case in cases}:
        missing += [f"{name}: no such suite" for name in sorted(unknown) if options.suite]
    chosen = [case for case in cases if case.suite in wanted or case.group in wanted]
    if options.spawn and options.all:
        chosen = [replace(case, ranks_start_by=SPAWN) for case in chosen]
    elif options.spawn:
        starts = dict.fromkeys(sample.names(sample.FULL_EXIT), FORK_FULL_EXIT)
        starts |= dict.fromkeys(sample.names(sample.SPAWN), SPAWN)
        chosen = _sampled(chosen, starts, missing)
    elif options.short:
        starts = dict.fromkeys(sample.names(sample.SHORT), FORK)
        chosen = _sampled(chosen, starts, missing)
    chosen = [case for case in chosen if all(only.search(case.name) for only in options.only)]
    return [case for case in chosen for _ in range(options.repeat)]


def _sampled(cases: list[Case], starts: dict[str, str], missing: list[str]) -> list[Case]:
    """Those of the cases that `starts` names, their ranks to be started as it says."""
    absent = starts.keys() - {case.name for case in cases}
    missing += [f"{name}: in the sample, not in this PyTorch" for name in sorted(absent)]
    return [
        replace(case, ranks_start_by=starts[case.name]) for case in cases if case.name in starts
    ]


def main(arguments: list[str] | None = None) -> int:
    """Runs what the command line asks for; returns the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    started = time.monotonic()
    try:
        cases, missing = prepare(options)
    except ModuleNotFoundError as error:
        if error.name != "weft":
            raise
        print("weft is not importable: use ./dev shell -- python tests/conformance/run.py")
        return 2
    chosen = select(cases, options, missing)
    if options.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if not chosen:
        print("\n".join([*missing, "no test is selected"]))
        return NONE_SELECTED if options.only else 2
    if threads := len(os.listdir("/proc/self/task")) - 1:
        print(f"warning: {threads} threads run after the imports; forked tests may hang")
    print(f"{len(chosen)} tests on {options.backend}; ready in {time.monotonic() - started:.1f} s")
    report = Report(len(chosen), options.logs)
    report.missing = missing
    to_run = []
    for case in chosen:
        if reason := skips.skip_reason(options.backend, case.name):
            report.add(case, Verdict(SKIPPED, reason), 1)
        else:
            to_run.append(case)
    pool.run(
        to_run,
        lanes=options.jobs,
        timeout=options.timeout or (300 if options.spawn else 120),
        attempts=lambda case: skips.attempts(options.backend, case.name),
        on_verdict=report.add,
        on_retry=report.retry,
    )
    code = report.finish()
    if options.json:
        report.write_json(options.json)
    return code


def _stop(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice: the second may not cut short
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main())
