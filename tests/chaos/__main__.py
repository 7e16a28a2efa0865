"""The long form: `./dev chaos [--minutes 10] [--kills 1000] [--seed 1]`.

First kills, until there were so many; then random faults under random workloads, and kills among them,
until the time is up. It prints the seed first, each finding as it comes, and figures at the end; what
hangs is followed by the stacks of all processes. One kind of case, often:

    ./dev chaos --kills 0 --cases 300 --workload rref --fault Kill

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
import workloads  # noqa: E402
from cases import Result, draw, run_case  # noqa: E402
from fleet import Fleet  # noqa: E402
from rank_cases import PATHS, Ranks, run_rank_case  # noqa: E402

RANK_FAULTS = {
    path: [
        fault
        for fault in faults.ALL
        if fault.of_ranks
        and fault.cost is not faults.Cost.RESOURCES
        and fault.proxied == (path == "tcp")
    ]
    for path in PATHS
}
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
    """The fleets, each made when it is wanted and made again when it is at its end."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.fleets: dict[bool, Fleet] = {}
        self.ranks: dict[str, Ranks] = {}

    def calls(self, kind: str, fault: faults.Fault, seed: int, thorough: bool) -> None:
        if fault.proxied not in self.fleets:
            self.fleets[fault.proxied] = Fleet(fault.proxied)
        fleet = self.fleets[fault.proxied]
        result = run_case(fleet, kind, fault, seed, thorough)
        self.tally.add(result)
        if fault.of_all or result.found:
            self.fleets.pop(fault.proxied).close()
        elif thorough and not fault.proxied:
            resident = fleet.caller.call(members.resources)["resident"] / (1 << 20)
            self.tally.memory.append((time.monotonic(), resident))

    def collectives(self, path: str, fault: faults.Fault, seed: int) -> None:
        if path not in self.ranks:
            self.ranks[path] = Ranks(path)
        result = run_rank_case(self.ranks[path], fault, seed)
        self.tally.add(result)
        if fault.of_all or result.found:
            self.ranks.pop(path).close()

    def close(self) -> None:
        for fleet in [*self.fleets.values(), *self.ranks.values()]:
            fleet.close()


def kill_once(arena: Arena, seed: int, thorough: bool) -> None:
    """One kill: of a worker four times in five, of a rank otherwise."""
    rng = random.Random(seed)
    if rng.random() < 0.2:
        path = rng.choice(list(PATHS))
        arena.collectives(path, faults.Kill(rng), seed)
    else:
        fault = rng.choice((faults.Kill, faults.Kill, faults.ProxiedKill))(rng)
        arena.calls(
            rng.choice([*workloads.COUNTED, "autograd", "published"]), fault, seed, thorough
        )


def anything_once(arena: Arena, seed: int, workload: str, fault_name: str) -> None:
    """What the seed says, or this workload under this fault."""
    rng = random.Random(seed)
    if workload and fault_name:
        arena.calls(workload, getattr(faults, fault_name)(rng), seed, False)
    elif rng.random() < 0.25:
        path = rng.choice(list(PATHS))
        arena.collectives(path, rng.choice(RANK_FAULTS[path])(rng), seed)
    else:
        kind, fault = draw(seed, faults.ALL)
        arena.calls(kind, fault, seed, True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of random faults")
    parser.add_argument("--kills", type=int, default=1000, help="kills before that")
    parser.add_argument("--cases", type=int, default=1 << 30, help="of random faults, at most")
    parser.add_argument("--workload", default="", choices=workloads.OPERATIONS)
    parser.add_argument("--fault", default="", choices=[one.__name__ for one in faults.ALL])
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
            anything_once(arena, seed, args.workload, args.fault)
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
