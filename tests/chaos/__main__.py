"""The long form: `./dev chaos [--minutes 10] [--kills 1000] [--seed 1]`.

First kills, until there were so many; then random faults under random workloads, and kills among them,
until the time is up. It prints the seed first, each finding as it comes, and figures at the end; what
hangs is followed by the stacks of all processes. The two figures, each alone, and one kind of case:

    ./dev chaos --kills 1000 --minutes 0
    ./dev chaos --kills 0 --minutes 10
    ./dev chaos --kills 0 --cases 300 --workload rref --fault Kill --path tcp

Moments are drawn, but what the machine does is not: a case's seed makes it likely again, not certain.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "rpc", HERE.parent / "support"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import faults  # noqa: E402
import members  # noqa: E402
import paths  # noqa: E402
import wall_clock  # noqa: E402
import workloads  # noqa: E402
from cases import Result, draw, run_case  # noqa: E402
from fleet import Fleet  # noqa: E402
from rank_cases import Ranks, run_rank_case  # noqa: E402

COLLECTIVES = "collectives"
ALL = [one for one in faults.ALL if wall_clock.COMPILER or one is not faults.ClockJumps]
THOROUGH_EVERY = 10  # kills
WARM = 60.0  # seconds before the slope of the memory begins to count
LONG_ENOUGH = 300.0  # seconds that it must be seen for
STEEPEST = 1.0  # MiB per minute


class Tally:
    """What all cases came to."""

    def __init__(self) -> None:
        self.cases = self.kills = self.hangs = self.operations = self.errors = self.bad = 0
        self.waits: list[float] = []
        self.memory: list[tuple[float, float]] = []  # seconds, MiB of the caller
        self.started = time.monotonic()

    def add(self, result: Result) -> None:
        self.cases += 1
        self.kills += result.killed
        self.hangs += result.hung
        self.operations += result.operations
        self.errors += result.errors
        if result.killed:
            self.waits += result.waits
        if result.found:
            self.bad += 1
            print(f"FOUND {result.text}", flush=True)
            for line in result.found[:8]:
                print("  " + line.replace("\n", "\n  "), flush=True)
        if self.cases % 50 == 0:
            print(self, flush=True)

    def slope(self) -> float | None:
        """MiB per minute of one process's memory, by least squares; None: too short to say."""
        points = [(at, mib) for at, mib in self.memory if at > self.memory[0][0] + WARM]
        if len(points) < 5 or points[-1][0] - points[0][0] < LONG_ENOUGH:
            return None
        mean_at = sum(at for at, _ in points) / len(points)
        mean = sum(mib for _, mib in points) / len(points)
        above = sum((at - mean_at) * (mib - mean) for at, mib in points)
        return 60 * above / sum((at - mean_at) ** 2 for at, _ in points)

    def __str__(self) -> str:
        waits = sorted(self.waits)
        said = ", ".join(
            f"p{part}: {waits[min(len(waits) - 1, len(waits) * part // 100)]:.3f} s"
            for part in ((50, 99, 100) if waits else ())
        )
        return (
            f"{time.monotonic() - self.started:.0f} s: {self.cases} cases, {self.kills} kills, "
            f"{self.hangs} hangs, {self.bad} cases with findings; {self.operations} operations, "
            f"{self.errors} errors; from a kill to an error {said or 'nothing'}"
        )


class Arena:
    """The fleets and ranks, each made when it is wanted and made again when it is at its end."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.fleets: dict[str, Fleet] = {}
        self.ranks: dict[str, Ranks] = {}

    def calls(self, kind: str, path: str, fault: faults.Fault, seed: int, thorough: bool) -> None:
        if path not in self.fleets:
            self.fleets[path] = Fleet(path)
        fleet = self.fleets[path]
        result = run_case(fleet, kind, fault, seed, thorough)
        self.tally.add(result)
        if result.over:
            self.fleets.pop(path).close()
        elif thorough and path == "unix":
            resident = fleet.caller.call(members.resources)["resident"] / (1 << 20)
            self.tally.memory.append((time.monotonic(), resident))

    def collectives(self, path: str, fault: faults.Fault, seed: int) -> None:
        if path not in self.ranks:
            self.ranks[path] = Ranks(path)
        result = run_rank_case(self.ranks[path], fault, seed)
        self.tally.add(result)
        if result.over:
            self.ranks.pop(path).close()

    def close(self) -> None:
        for fleet in [*self.fleets.values(), *self.ranks.values()]:
            fleet.close()


def kill_once(arena: Arena, seed: int, thorough: bool) -> None:
    """One kill: of a worker four times in five, of a rank otherwise."""
    rng = random.Random(seed)
    fault = faults.Kill(rng)
    if rng.random() < 0.2:
        arena.collectives(rng.choice(where(faults.Kill, paths.OF_RANKS)), fault, seed)
    else:
        path = rng.choice(where(faults.Kill, paths.OF_WORKERS))
        kinds = [kind for kind in workloads.OPERATIONS if kind != "pipe"]
        arena.calls(rng.choice(kinds), path, fault, seed, thorough)


def where(fault: type[faults.Fault], among: dict[str, paths.Path]) -> list[str]:
    return [name for name, path in among.items() if fault.fits(path)]


def anything_once(arena: Arena, seed: int, args: argparse.Namespace) -> None:
    """What the seed says, as far as the arguments do not."""
    rng = random.Random(seed)
    every = [getattr(faults, args.fault)] if args.fault else ALL
    kind, path, fault = draw(rng, every)
    of_ranks = args.workload == COLLECTIVES or (not args.workload and rng.random() < 0.25)
    if of_ranks:
        path = args.path or rng.choice(where(fault, paths.OF_RANKS))
        arena.collectives(path, fault(rng), seed)
        return
    if args.workload:
        kind, path = args.workload, rng.choice(where(fault, paths.OF_WORKERS))
    arena.calls(kind, args.path or path, fault(rng), seed, True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of random faults")
    parser.add_argument("--kills", type=int, default=1000, help="kills before that")
    parser.add_argument("--cases", type=int, default=1 << 30, help="of random faults, at most")
    kinds = [*workloads.OPERATIONS, COLLECTIVES]
    parser.add_argument("--workload", default="", choices=kinds)
    parser.add_argument("--fault", default="", choices=[one.__name__ for one in ALL])
    parser.add_argument("--path", default="", choices={**paths.OF_WORKERS, **paths.OF_RANKS})
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 20))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    tally = Tally()
    arena = Arena(tally)
    grows = False
    try:
        for number in range(args.kills):
            kill_once(arena, args.seed + number, number % THOROUGH_EVERY == 0)
        end = time.monotonic() + 60 * args.minutes
        while time.monotonic() < end and tally.cases < args.kills + args.cases:
            seed = args.seed + tally.cases - args.kills
            anything_once(arena, seed, args)
    finally:
        arena.close()
        print(tally)
        if tally.memory:
            slope = tally.slope()
            said = "too short to say" if slope is None else f"{slope:.2f} MiB/min"
            print(f"memory of a caller: {said}")
            grows = slope is not None and slope > STEEPEST
    return 1 if tally.bad or grows else 0


if __name__ == "__main__":
    sys.exit(main())
