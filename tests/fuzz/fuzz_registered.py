"""A fuzzer for what a peer's pickle may resolve and build under the policy ``registered``.

    ./dev fuzz fuzz_registered            a million pickles
    ./dev fuzz --runs 5000 fuzz_registered

Pickles are made up opcode by opcode (`pickle_programs.py`), from those that real calls send and those
that the tests refuse. Nothing that is not registered is resolved or called, no registered object and no
module is changed, nothing is imported, compiled or opened, and what is wrong is an UnpicklingError
(`registered_watch.py`). A child process reads them, so that one that crashes or hangs is found, too.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "rpc", HERE.parent / "support"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import registered_pickles as by_hand  # noqa: E402
import registered_watch  # noqa: E402
import torch  # noqa: E402
from pickle_programs import Words, mutated  # noqa: E402
from torch.distributed.rpc import internal  # noqa: E402

import weft  # noqa: E402
from weft._torch.patches import unpickler  # noqa: E402

LONGEST = 60  # seconds of one pickle until its process is ended
MOST = 1 << 16  # bytes of a pickle
CORPUS = 3000  # pickles
NEXT_LOOK = 64  # pickles between two looks at all that must not change

NAMES = [
    *((by_hand.HERE, one.__qualname__) for one in by_hand.REGISTERED),
    *((registered_watch.__name__, one.__qualname__) for one in registered_watch.REGISTERED),
    *(
        ("builtins", name)
        for name in ("set", "frozenset", "slice", "range", "complex", "bytearray")
    ),
    *(("builtins", name) for name in ("getattr", "OSError", "AttributeError", "ExceptionGroup")),
    *(("builtins", name) for name in ("StopIteration", "ImportError", "KeyError", "SyntaxError")),
    *((by_hand.TORCH, name) for name in ("PythonUDF", "RemoteException", "_InternalRPCPickler")),
    *(("torch", name) for name in ("Size", "device", "float32", "strided", "OutOfMemoryError")),
    *(("collections", "OrderedDict"), ("torch.serialization", "_get_layout")),
    *(("weft._remote.named_tuples", "remade"), ("weft.errors", "RemoteError")),
    # What is not for peers.
    *((registered_watch.__name__, name) for name in ("trap", "Trap", "called", "Trap.__init__")),
    *((by_hand.HERE, name) for name in ("Point.__init__", "_ran", "register_all", "OPERATIONS")),
    *(("builtins", name) for name in ("eval", "exec", "setattr", "type", "SystemExit", "map")),
    *(("os", "system"), ("posix", "system"), ("subprocess", "Popen"), ("torch", "load")),
    *(("torch", "_dynamo"), ("weft", "register_function"), ("operator", "attrgetter")),
    *(("sys", "modules"), ("functools", "partial"), ("copyreg", "_reconstructor"), ("", "")),
]
TEXTS = [
    *("x", "y", "text", "", "func", "args", "kwargs", "msg", "exception_type", "cpu", "a b"),
    *("__class__", "__dict__", "__setstate__", "__init__", "__new__", "__defaults__", "__code__"),
    *("__globals__", "__bases__", "__reduce__", "__call__", "__eq__", "__hash__", "__cause__"),
    *("__context__", "__traceback__", "__notes__", "_tensor_receiver", "_py_rref_receiver"),
    *("extend", "append", "add", "update", "obj", "name", "value", "filename", "_fields", "own"),
    *("class", "lambda: 1", "a,b", "import os", "torch.strided", "int", "List[int]", by_hand.HERE),
]


def seeds() -> list[bytes]:
    """Pickles of real requests and answers, and those that are refused."""
    head = b"\x80\x04"
    one = by_hand
    values = [
        *(None, 5, -(10**30), 2.5, 1j, "text", b"bytes", bytearray(b"bytes"), [1, [2]], (1, (2,))),
        *({"a": {1: 2}}, {(1, (2, 3)): 4}, {1, (2, 3)}, frozenset({1, (2,)}), slice(1, None)),
        *(range(10), torch.Size([2, 3]), torch.device("cpu"), torch.float16, torch.sparse_coo),
        *(one.Color.RED, one.Point(1, [2]), one.Slotted(1, (2,)), one.Frozen(5), one.Stateful(7)),
        *(one.Pair(1, one.Pair(2, "3")), one.Names([1, 2]), one.Table(a=1), one.OwnError("a", 5)),
        *(registered_watch.Items([1]), registered_watch.Frozen([(1,)]), ValueError, one.shout),
        *(registered_watch.Parts([1, (2,)]), KeyError("key"), OSError(9999, "text", "file")),
        *(weft._remote.named_tuples.remade("P", ("a", "b"), (1, 2)), torch.ones(2)),
        internal.RemoteException("gone", ValueError),
    ]
    made = [internal.serialize(value)[0] for value in values]
    made += [
        internal.serialize(internal.PythonUDF(one.same, (value,), {"a": value}))[0]
        for value in values
    ]
    made += [head + refused + b"." for refused in one.REFUSED.values() if len(refused) < 2000]
    for target in one.TARGETS.values():
        made += [
            head + target + change + b"0" + one.REQUEST + b"." for change in one.OPERATIONS.values()
        ]
    return made


class Fuzzer:
    """The life of the process that reads pickles."""

    def __init__(self, seed: int, place: mmap.mmap) -> None:
        self.random = random.Random(seed)
        self.place = place
        self.words = Words(NAMES, TEXTS)
        self.corpus = seeds()  # before the watch: pickling notes in a class which slots it has
        by_hand.Singleton()  # its class keeps it
        unpickler.set_policy("registered")
        self.watch = registered_watch.Watch(by_hand.REGISTERED, (by_hand,))
        self.outcomes: set[str] = set()
        self.tensors = [torch.ones(2)]

    def read(self, pickled: bytes) -> None:
        """Raises if the pickle does what it may not; keeps it if it ends as none before."""
        # Where the parent finds it, however this process ends.
        self.place[:8] = len(pickled).to_bytes(8, "little")
        self.place[8 : 8 + len(pickled)] = pickled
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        outcome = self.watch.read(pickled, self.tensors)
        kind = re.sub(r"\d+", "0", outcome)[:150]
        if kind not in self.outcomes and len(self.corpus) < CORPUS:
            self.outcomes.add(kind)
            self.corpus.append(pickled)

    def run(self, runs: int, seconds: float) -> int:
        """Reads so many pickles, or for so long; how many it read."""
        end = time.monotonic() + seconds
        for pickled in self.corpus[:]:
            self.read(pickled)
            self.watch.check_unchanged()
        recent: list[bytes] = []
        for number in range(runs):
            pickled = mutated(self.random, self.words, self.corpus)[:MOST]
            recent.append(pickled)
            self.read(pickled)
            if len(recent) == NEXT_LOOK or number == runs - 1:
                self._look_back(recent)
                if time.monotonic() > end:
                    return number + 1
        return runs

    def _look_back(self, recent: list[bytes]) -> None:
        try:
            self.watch.check_unchanged()
        except registered_watch.Found:
            print("one of these:", [pickled.hex() for pickled in recent], flush=True)
            raise
        recent.clear()


def run_child(args: argparse.Namespace, place: mmap.mmap) -> int:
    faulthandler.enable()
    fuzzer = Fuzzer(args.seed, place)
    try:
        for name in args.pickles:
            print(name, fuzzer.watch.read(Path(name).read_bytes(), fuzzer.tensors), flush=True)
            fuzzer.watch.check_unchanged()
        if args.pickles:
            return 0
        count = fuzzer.run(args.runs, args.seconds)
    except registered_watch.Found as found:
        print(f"FOUND {found}", flush=True)
        return 1
    print(f"{len(fuzzer.corpus)} pickles kept, {len(fuzzer.outcomes)} ways to end", flush=True)
    print(f"stat::number_of_executed_units: {count}", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1 << 62)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--findings", type=Path, default=Path(), help="folder for what is found")
    parser.add_argument("pickles", nargs="*", help="files to read instead: what was found before")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    place = mmap.mmap(-1, 8 + (1 << 20))
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = run_child(args, place)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(ended)
    if status != 0:
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        length = int.from_bytes(place[:8], "little")
        args.findings.mkdir(parents=True, exist_ok=True)
        file = args.findings / f"found-{args.seed}"
        file.write_bytes(place[8 : 8 + length])
        print(f"FOUND: the reading process ended with {how}; the pickle is in {file}")
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
