"""Entry: ``./dev bench scale [--ranks 16 … 10000] [--measure]``.

Start-up of an RPC group and of a process group, the agreement to stop, and the same with dead workers:
messages of a rank and the time until the last is through, by simulation. ``--measure`` takes the Store's
costs from torch's TCPStore on this machine instead of the round figures in costs.py.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench.scale import costs, protocols
from bench.scale.simulation import Rank, Run, Simulation

RANKS = (16, 64, 256, 1000, 4000, 10000)
SPREAD = 0.1  # seconds within which the ranks come
PROTOCOLS: dict[str, tuple[Callable[[Simulation, int, int], Rank], int]] = {
    "init_rpc": (protocols.rpc_start, 0),
    "init_process_group": (protocols.group_start, 0),
    "shutdown": (protocols.shutdown, 0),
    "shutdown, one dead": (protocols.shutdown, 1),
    "shutdown, eight dead": (protocols.shutdown, 8),
}


def simulate(name: str, ranks: int, known: costs.Costs, seed: int = 0) -> Run:
    """One protocol at one size; the dead and the times at which the ranks come are of chance."""
    protocol, deaths = PROTOCOLS[name]
    chance = random.Random(seed)
    dead = frozenset(chance.sample(range(1, ranks), deaths))
    sim = Simulation(known, ranks, dead)
    for rank in range(ranks):
        if rank not in dead:
            sim.start(rank, protocol(sim, rank, ranks), chance.uniform(0, SPREAD))
    run = sim.finish()
    for rank in dead:
        run.asked[rank] = run.pings[rank] = 0
    return run


def table(found: dict[str, list[Run]]) -> str:
    """Markdown: messages of the median rank and of the busiest, seconds."""
    sizes = [run.ranks for run in next(iter(found.values()))]
    lines = [
        f"| messages of a rank: median, most; seconds | {' | '.join(f'{n:,}' for n in sizes)} |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for name, runs in found.items():
        cells = [
            f"{statistics.median(run.messages):.0f}, {max(run.messages)}; {run.seconds:.2g}"
            for run in runs
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(found: dict[str, list[Run]], path: Path) -> None:
    """The curve, where matplotlib is there."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    for name, runs in found.items():
        sizes = [run.ranks for run in runs]
        axes[0].plot(sizes, [max(run.messages) for run in runs], "o-", label=name, markersize=4)
        axes[1].plot(sizes, [run.seconds for run in runs], "o-", label=name, markersize=4)
    for axis, title in zip(axes, ("messages of the busiest rank", "seconds"), strict=True):
        axis.set_xscale("log")
        axis.set_xlabel("ranks")
        axis.set_title(title, loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(bottom=0)
    axes[1].set_yscale("log")
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def main() -> None:
    """Simulates all, prints the table and draws the curve."""
    parser = argparse.ArgumentParser(prog="./dev bench scale", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=list(RANKS))
    parser.add_argument("--measure", action="store_true", help="costs of this machine's TCPStore")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    arguments = parser.parse_args()
    known = costs.measure() if arguments.measure else costs.Costs()
    print("costs: " + ", ".join(f"{name} {value:.3g} s" for name, value in asdict(known).items()))
    found = {
        name: [simulate(name, ranks, known, arguments.seed) for ranks in arguments.ranks]
        for name in PROTOCOLS
    }
    print(table(found))
    draw(found, arguments.out / "scale.svg")


if __name__ == "__main__":
    main()
