"""Entry: ``./dev bench rpc [--rounds 7] [--ours WEFT] [--theirs TENSORPIPE] [--only NAME …]``."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from pathlib import Path

from bench import report, steal
from bench.rpc import cpp_latency, namespaces
from bench.rpc.metrics import METRICS
from bench.rpc.pair import two_cores

CPP = "cpp"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench rpc", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds; medians are shown")
    parser.add_argument(
        "--ours",
        default="WEFT",
        help="WEFT, WEFT_TCP (no Unix socket), WEFT_TLS, or WEFT@FOLDER (another build)",
    )
    parser.add_argument("--theirs", default="TENSORPIPE", help="or TENSORPIPE_UV: TCP only")
    parser.add_argument(
        "--two-hosts", action="store_true", help="each process in a network namespace (root)"
    )
    parser.add_argument("--pinned", action="store_true", help="each process on a core of its own")
    parser.add_argument("--ranks", type=int, help="only this: so many workers on one host")
    parser.add_argument(
        "--crowd", type=int, help="only this: so many workers that all call each other"
    )
    parser.add_argument(
        "--encryption", action="store_true", help="only this: TLS and checksums beside plain TCP"
    )
    parser.add_argument(
        "--plain", type=Path, help="for --encryption: a build (site folder) without checksums"
    )
    parser.add_argument(
        "--only", nargs="*", choices=[*METRICS, CPP], help="all but this left out; cpp: C++ to C++"
    )
    parser.add_argument(
        "--cpp",
        type=Path,
        default=os.environ.get(cpp_latency.VARIABLE),
        help="the program //bench/rpc/cpp:latency, which `./dev bench rpc` has built",
    )
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    arguments = parser.parse_args()
    if arguments.only is None:
        arguments.only = [*METRICS, CPP]
    if CPP in arguments.only and arguments.cpp is None:
        print("no program for C++ to C++ calls; `./dev bench rpc` builds it", file=sys.stderr)
    return arguments


def main() -> None:
    """Measures both backends alternately, metric by metric, and prints the table."""
    arguments = _arguments()
    if arguments.ranks:
        from bench.rpc import ranks

        print(ranks.table((arguments.ours, arguments.theirs), arguments.ranks))
        return
    if arguments.crowd:
        from bench.rpc import crowd

        sides = (arguments.ours, arguments.theirs)
        print(crowd.table(sides, arguments.crowd, arguments.rounds))
        return
    with namespaces.TwoHosts() if arguments.two_hosts else contextlib.nullcontext() as hosts:
        if arguments.encryption:
            from bench.rpc import encryption

            print(encryption.table(arguments.plain, arguments.rounds, hosts))
            return
        _compare(arguments, hosts)


def _compare(arguments: argparse.Namespace, hosts: namespaces.TwoHosts | None) -> None:
    if arguments.cpp is not None and CPP in arguments.only:
        print(cpp_latency.table(cpp_latency.measure(arguments.cpp)) + "\n", flush=True)
    names = [name for name in arguments.only if name != CPP]
    if not names:
        return
    from bench.rpc import turns

    sides = (arguments.ours, arguments.theirs)
    cores = two_cores() if arguments.pinned else None
    found = turns.measure(sides, names, arguments.rounds, cores, hosts)
    over_tcp = hosts is not None or arguments.ours.startswith("WEFT_T")
    ours, theirs = (found.figures[side] for side in sides)
    judged = report.judge(
        "tcp" if over_tcp else "rpc",
        "pinned" if cores else "free",
        ours,
        lambda name, figures: turns.limit(name, figures, over_tcp),
        found.limits,
        theirs,
    )
    print(report.judged_table(judged, arguments.theirs))
    print(f"\n{report.verdicts(judged)}\n- {steal.summary(found.steal)}")
    print(f"- {os.cpu_count()} cores; load average at the end {os.getloadavg()[0]:.1f}")
    floors = {
        name: statistics.median(one[name] for one in found.limits) for name in found.limits[0]
    }
    report.write(arguments.out, report.rows(ours, theirs), *sides, floors)


if __name__ == "__main__":
    main()
