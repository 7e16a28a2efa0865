"""Entry: ``./dev bench pipe [--rounds 3] [--peer-venv PATH] [--only NAME …]``.

``--peer-venv`` is a venv with a torch that still has a Pipe. To make one (2.7 GB to download)::

    python3.11 -m venv peer && peer/bin/pip install torch==2.3.1 "numpy<2"
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bench import report as rows_of
from bench import steal
from bench.pipe import report
from bench.pipe.metrics import METRICS, Figures
from bench.pipe.peer import Peer


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench pipe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds; medians are shown")
    parser.add_argument("--peer-venv", type=Path, help="a venv with torch 2.3.1, say")
    parser.add_argument("--no-pipelining", action="store_true", help="without that peer")
    parser.add_argument("--only", nargs="*", default=list(METRICS), choices=list(METRICS))
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    arguments = parser.parse_args()
    if arguments.peer_venv is not None and not (arguments.peer_venv / "bin/python").exists():
        parser.error(f"--peer-venv: there is no {arguments.peer_venv}/bin/python")
    return arguments


def make_peers(peer_venv: Path | None = None, pipelining: bool = True) -> list[Peer]:
    """The processes of all sides."""
    peers = [Peer("weft"), Peer("workers")]
    if peer_venv is not None:
        # Not resolved: a venv is told by the path that its python was started by.
        peers.append(Peer("torch", peer_venv.absolute() / "bin/python"))
    if pipelining:
        peers.append(Peer(report.PEER))
    return peers


def measure(peers: list[Peer], names: list[str], rounds: int) -> tuple[report.Rounds, list[float]]:
    """The sides in turn, metric by metric; and the steal of each round."""
    found: report.Rounds = {peer.side: [] for peer in peers}
    losses: list[float] = []

    def one(number: int) -> dict[str, Figures]:
        figures: dict[str, Figures] = {peer.side: {} for peer in peers}
        for name in names:
            # Who goes first changes, so that a machine that slows down favours nobody.
            for peer in peers if number % 2 == 0 else peers[::-1]:
                figures[peer.side].update(peer.measure(name))
        return figures

    try:
        for number in range(rounds):
            figures, lost = steal.quiet_round(lambda number=number: one(number))
            for side in found:
                found[side].append(figures[side])
            losses.append(lost)
            print(f"round {number + 1} of {rounds}, steal {lost:.1%}", file=sys.stderr)
    finally:
        for peer in peers:
            peer.close()
    return found, losses


def main() -> None:
    """Measures all sides and prints the tables."""
    arguments = _arguments()
    peers = make_peers(arguments.peer_venv, not arguments.no_pipelining)
    rounds, losses = measure(peers, arguments.only, arguments.rounds)
    versions = {peer.side: peer.version.partition("+")[0] for peer in peers}
    print(report.table(rounds, versions))
    judged = report.judged(rounds)
    print("\n" + rows_of.judged_table(judged, report.NAMES[report.PEER]))
    print(f"\n{rows_of.verdicts(judged)}\n- {steal.summary(losses)}")
    print(f"\n- {os.cpu_count()} cores; load average at the end {os.getloadavg()[0]:.1f}")
    print("- us: beside the same work by hand in the same process; x: times its speed")
    report.write(arguments.out, rounds, versions)


if __name__ == "__main__":
    main()
