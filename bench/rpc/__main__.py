"""Entry: ``./dev bench rpc [--rounds 7] [--ours WEFT] [--theirs TENSORPIPE] [--only NAME …]``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from bench.rpc import cpp_latency, floor, namespaces, report
from bench.rpc.metrics import METRICS, Figures

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
    arguments.only = [name for name in arguments.only if name != CPP]
    if not arguments.only:
        return
    floors = floor.all_floors(hosts)  # forks, so before anything starts a thread
    from bench.rpc.pair import Pair

    sides = (arguments.ours, arguments.theirs)
    pairs = {side: Pair(side, hosts) for side in sides}
    rounds: dict[str, list[Figures]] = {side: [] for side in sides}
    try:
        for number in range(arguments.rounds):
            figures: dict[str, Figures] = {side: {} for side in sides}
            for name in arguments.only:
                # Who goes first changes, so that neither always finds warm caches.
                for side in sides if number % 2 == 0 else sides[::-1]:
                    figures[side].update(pairs[side].measure(name))
            for side in sides:
                rounds[side].append(figures[side])
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    finally:
        for pair in pairs.values():
            pair.close()
    found = report.rows(rounds[sides[0]], rounds[sides[1]])
    load = os.getloadavg()[0]
    print(report.table(found, *sides, floors))
    print(f"- {os.cpu_count()} cores; load average at the end {load:.1f}")
    report.write(arguments.out, found, *sides, floors)


if __name__ == "__main__":
    main()
