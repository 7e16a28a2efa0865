"""Entry: ``./dev bench table [--rounds 3] [--parts NAME …] [--publish]``: all that has an aim, in one
run. ``--publish`` writes it into docs/reference/performance_table.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench import limits as machine
from bench import publish, report, steal
from bench.rpc import cpp_latency

# Rows that say what others say too, or that take longer than they tell.
RPC_LEFT_OUT = ("send_weft_empty", "idle_cpu")
TCP_ROWS = ["sync_add", "send_1m", "send_16m", "send_256m", "state_dict"]
# All sizes of one operation; of the others the size at which bytes are what counts.
COLLECTIVES = [
    ("barrier", ""),
    *(("all_reduce", size) for size in ("8 B", "64 KiB", "1 MiB", "16 MiB", "128 MiB")),
    *(
        (operation, "16 MiB")
        for operation in (
            "broadcast",
            "reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "ping-pong",
        )
    ),
]
Part = tuple[str, list[report.Judged], list[float]]  # its peer, its rows, steal by round


def _rpc(rounds: int, pinned: bool, over_tcp: bool = False) -> Part:
    from bench.rpc import metrics, turns
    from bench.rpc.pair import two_cores

    names = TCP_ROWS if over_tcp else [n for n in metrics.METRICS if n not in RPC_LEFT_OUT]
    sides = ("WEFT_TCP", "TENSORPIPE_UV") if over_tcp else ("WEFT", "TENSORPIPE")
    found = turns.measure(sides, names, rounds, two_cores() if pinned else None)
    ours, theirs = (found.figures[side] for side in sides)
    judged = report.judge(
        "tcp" if over_tcp else "rpc",
        "pinned" if pinned else "free",
        ours,
        lambda name, figures: turns.limit(name, figures, over_tcp),
        found.limits,
        theirs,
    )
    return "TensorPipe", judged, found.steal


def _cpp(rounds: int, pinned: bool) -> Part:
    program = Path(os.environ[cpp_latency.VARIABLE])
    judged, lost = steal.quiet_round(lambda: cpp_latency.judged(program, rounds, pinned))
    return "", judged, [lost]


def _collectives(count: int, rounds: int, pinned: bool) -> Part:
    from bench.collectives import ranks

    how = ranks.How(pinned=pinned)
    found = ranks.run(count, ranks.free_port(), COLLECTIVES, rounds, how)
    return "Gloo", ranks.judged(found, count, pinned), ranks.losses(found)


def _ddp(rounds: int, pinned: bool) -> Part:
    from bench.ddp.__main__ import measure

    (judged, _), lost = steal.quiet_round(lambda: measure(2, rounds, pinned))
    return "Gloo", judged, [lost]


def _pipe(rounds: int) -> Part:
    from bench.pipe import report as pipe_report
    from bench.pipe.__main__ import make_peers, measure

    names = ["by_hand", "overhead", "overhead_scripted", "overlap_asleep", "steady"]
    found, losses = measure(make_peers(), names, rounds)
    judged = pipe_report.judged(found) + pipe_report.judged(found, "workers")
    return pipe_report.NAMES[pipe_report.PEER], judged, losses


def _parts(rounds: int, cores: int) -> dict[str, Callable[[], Part]]:
    """By name; without two cores nothing is pinned."""
    parts: dict[str, Callable[[], Part]] = {}
    for pinned in (False, True) if cores > 1 else (False,):
        where = "pinned" if pinned else "free"
        parts[f"rpc-{where}"] = lambda pinned=pinned: _rpc(rounds, pinned)
        parts[f"tcp-{where}"] = lambda pinned=pinned: _rpc(rounds, pinned, over_tcp=True)
        if os.environ.get(cpp_latency.VARIABLE):
            parts[f"cpp-{where}"] = lambda pinned=pinned: _cpp(rounds, pinned)
        for count in (2, 4):
            if pinned and count > cores:
                continue  # ranks that share a core say nothing that free ones do not
            parts[f"collectives-{count}-{where}"] = lambda count=count, pinned=pinned: _collectives(
                count, rounds, pinned
            )
        parts[f"ddp-{where}"] = lambda pinned=pinned: _ddp(rounds, pinned)
    parts["pipe"] = lambda: _pipe(rounds)
    return parts


def main() -> None:
    """Measures part after part, and prints each as soon as it is there; the verdicts come last."""
    parts = _parts(1, 2)
    parser = argparse.ArgumentParser(prog="./dev bench table", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; medians are shown")
    parser.add_argument("--parts", nargs="*", choices=list(parts), help="only these")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    parser.add_argument("--publish", action="store_true", help="into the documentation, too")
    arguments = parser.parse_args()
    if arguments.publish and arguments.parts:
        parser.error("--publish takes the whole run, without --parts")
    floors = machine.measure() if arguments.publish else {}
    parts = _parts(arguments.rounds, len(os.sched_getaffinity(0)))
    began, found, sections = time.monotonic(), [], []
    for name in arguments.parts or parts:
        if name not in parts:
            print(f"{name}: needs a core for each process", file=sys.stderr)
            continue
        peer, judged, losses = parts[name]()
        section = (
            f"## {name}\n\n{report.judged_table(judged, peer)}\n\n"
            f"{steal.summary(losses)}; load {os.getloadavg()[0]:.1f}.\n"
        )
        print(f"\n{section}", flush=True)
        sections.append(section)
        found += judged
    print(f"\n{report.verdicts(found)}\n- {time.monotonic() - began:.0f} s in all")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.md").write_text("\n".join(sections))
    (arguments.out / "table.json").write_text(json.dumps([asdict(row) for row in found], indent=1))
    if arguments.publish:
        met = report.verdicts(found).partition("\n")[0]
        how = f"medians of {arguments.rounds} rounds, {met}"
        text = "\n".join((publish.preface("table", how, floors), "", *sections))
        print(f"published in {publish.put('table', text)}")


if __name__ == "__main__":
    main()
