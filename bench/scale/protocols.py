"""What a rank says when an RPC group forms, when a process group forms, and when a group ends: as
rpc_backend/group and c10d_plugin/store do it, with their waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.scale.simulation import SUM_BITS, Ask, Rank, Simulation

RECORD = 150  # bytes of a worker's record
ADDRESS = 80  # of a rank's address in a process group
SLICE = 0.25  # how often a waiting worker looks whether anybody is lost
PROBED = 16  # workers that are called at a time, so that their loss would be noticed
PROBE_EVERY = 1.0
WATCHERS, HEAD_START = 16, 1.0  # so many look for the lost first, 16 times as many a second later


def put(key: object, value: object = 1, size: int = 0) -> Ask:
    return Ask(lambda store: store.__setitem__(key, value), bytes=size)


def put_first(key: str, value: object = 1, size: int = 0) -> Ask:
    return Ask(lambda store: store.setdefault(key, value), bytes=size)


def add(key: str, value: int) -> Ask:
    def act(store: dict) -> int:
        store[key] = store.get(key, 0) + value
        return store[key]

    return Ask(act)


def get(key: str, size: int = 0) -> Ask:
    return Ask(lambda store: store.get(key), bytes=size)


def there(keys: Iterable[str]) -> Ask:
    names = list(keys)
    return Ask(lambda store: all(name in store for name in names), keys=len(names))


def read(keys: list[str], size: int) -> Ask:
    return Ask(lambda store: [store.get(key) for key in keys], len(keys), size * len(keys))


def wait_for(sim: Simulation, keys: list[str], since: float, limit: float = 1e9) -> Rank:
    """waitForKeys: looks the less often the longer it waits. True once they are there."""
    end = sim.now + limit
    while not (yield there(keys)):
        if sim.now >= end:
            return False
        waited = sim.now - since
        yield min(end - sim.now, max(1e-3, min(waited, max(0.05, waited / 20), 0.25)))
    return True


def rpc_start(sim: Simulation, rank: int, ranks: int) -> Rank:
    """Membership: the key, the kind, and the meeting of a static group."""
    yield put_first("secret")
    yield there(["secret"])
    yield get("secret", 128)
    yield put_first("kind")
    yield there(["outcome"])
    yield there(["outcome"])
    yield put_first(f"member/{rank}", size=RECORD)
    began = sim.now
    if rank == 0:
        others = range(1, ranks)
        yield from wait_for(sim, [f"ready/{other}" for other in others], began)
        yield read([f"member/{other}" for other in others], RECORD)
        yield put("members", size=ranks * RECORD)
        yield put_first("outcome")
        return
    yield from wait_for(sim, ["member/0"], began)
    yield read(["member/0"], RECORD)
    yield put(f"ready/{rank}")
    yield from wait_for(sim, ["outcome"], began)
    yield get("outcome")
    yield get("members", ranks * RECORD)


def _gather(sim: Simulation, topic: str, rank: int, ranks: int, size: int) -> Rank:
    """storeAllGather."""
    yield put(f"{topic}/{rank}", size=size)
    began = sim.now
    if rank == 0:
        keys = [f"{topic}/{other}" for other in range(ranks)]
        yield from wait_for(sim, keys, began)
        yield read(keys, size)
        yield put(f"{topic}/all", size=size * ranks)
        return
    yield from wait_for(sim, [f"{topic}/all"], began)
    yield get(f"{topic}/all", size * ranks)


def group_start(sim: Simulation, rank: int, ranks: int) -> Rank:
    """A process group: the epoch, the key, the addresses."""
    yield put(f"epoch/{rank}", size=16)
    began = sim.now
    if rank == 0:
        for topic, publishes in (("epoch", "view"), ("seen", "agreed")):
            keys = [f"{topic}/{other}" for other in range(0 if topic == "epoch" else 1, ranks)]
            yield from wait_for(sim, keys, began)
            yield read(keys, 16)
            yield put(publishes, size=16 * ranks)
        yield put("key")
    else:
        yield from wait_for(sim, ["view"], began)
        yield get("view", 16 * ranks)
        yield put(f"seen/{rank}", size=32)
        yield from wait_for(sim, ["agreed"], began)
        yield get("agreed", 16 * ranks)
        yield from wait_for(sim, ["key"], began)
    yield get("key", 128)
    yield from _gather(sim, "address", rank, ranks, ADDRESS)


def there_of(what: str, ranks: list[int]) -> Ask:
    """Whether all of ``ranks`` have posted."""
    return Ask(lambda store: all((what, rank) in store for rank in ranks), keys=len(ranks))


class Barrier:
    """ShutdownBarrier, of one rank."""

    def __init__(self, sim: Simulation, rank: int, ranks: int) -> None:
        self.sim, self.rank, self.ranks = sim, rank, ranks
        self.lost: set[int] = set()
        self.noticed: dict[int, float] = {}  # when the loss of a called one shows
        self.probed: set[int] = set()

    def run(self) -> Rank:
        """Two rounds without calls, then who is lost, then the last word."""
        for what in ("0", "1", "lost"):
            value = len(self.lost) if what == "lost" else 0
            yield put((what, self.rank))
            total = yield add(f"{what}/total", (1 << SUM_BITS) + value)
            if total >> SUM_BITS >= self.ranks:
                if value:
                    yield from self._decide(what)
                else:
                    yield put_first(f"{what}/all")
            yield from self._await(what)
            yield get(f"{what}/all")
        yield put("barriers")
        yield put(("done", self.rank))

    def _others(self) -> list[int]:
        ahead = [*range(self.rank + 1, self.ranks), *range(self.rank)]
        return [rank for rank in ahead if rank not in self.lost] if self.lost else ahead

    def _await(self, what: str) -> Rank:
        began = self.sim.now
        turn, before = began, WATCHERS
        while before <= self.rank:
            turn, before = turn + HEAD_START, before * WATCHERS
        next_probe = turn + PROBE_EVERY
        while not (yield from wait_for(self.sim, [f"{what}/all"], began, SLICE)):
            self.lost |= {rank for rank, when in self.noticed.items() if when <= self.sim.now}
            now = self.sim.now
            if now >= turn and (yield from self._all_posted(what)):
                yield from self._decide(what)
            elif now > next_probe:
                next_probe = now + PROBE_EVERY
                yield from self._probe(what)

    def _all_posted(self, what: str) -> Rank:
        if not self.lost:
            return False
        posted = (yield add(f"{what}/total", 0)) >> SUM_BITS
        if posted + len(self.lost) < self.ranks:
            return False
        missing: list[int] = []
        yield from self._absent(what, self._others(), 1, missing)
        return not missing

    def _decide(self, what: str) -> Rank:
        for rank in sorted(self.lost):
            yield there_of(what, [rank])
        yield Ask(lambda store: None, keys=self.ranks - len(self.lost), bytes=8 * self.ranks)
        yield put_first(f"{what}/all")

    def _probe(self, what: str) -> Rank:
        late: list[int] = []
        unprobed = [rank for rank in self._others() if rank not in self.probed]
        yield from self._absent(what, unprobed, PROBED, late)
        self.probed.update(late)
        for rank in late:
            self.sim.run.pings[self.rank] += 1
            if rank in self.sim.dead:
                self.noticed[rank] = self.sim.now + self.sim.costs.refused

    def _absent(self, what: str, ranks: list[int], most: int, found: list[int]) -> Rank:
        """absentRanks: halves until it knows who."""
        if not ranks or len(found) >= most or (yield there_of(what, ranks)):
            return
        if len(ranks) == 1:
            found.append(ranks[0])
            return
        half = len(ranks) // 2
        yield from self._absent(what, ranks[:half], most, found)
        yield from self._absent(what, ranks[half:], most, found)


def shutdown(sim: Simulation, rank: int, ranks: int) -> Rank:
    """The agreement to stop."""
    return Barrier(sim, rank, ranks).run()
