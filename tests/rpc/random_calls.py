"""Random calls of built-in operators: a name of aten's and arguments, made from a seed.

Most arguments are of the types that one of the name's overloads asks for; some are of any type, and
some calls have too few, too many or misnamed ones. A call is repeatable: the same seed makes it again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
SHAPES = [(), (1,), (1, 1), (0,), (2,), (4,), (2, 2), (2, 3), (1, 3), (2, 1, 2)]
INTEGERS = [-2, -1, 0, 1, 2, 3, 4]
STRINGS = ["mean", "none", "cpu", "floor", "linear", "reflect", "ij", "i,i->i", "", "x"]

# What a call takes at most; as_tensor(None, dtype=-1) does not end at all.
SECONDS = 5

# What a random call must not run: it ends or changes the process, reads or writes files, talks to
# others or waits, makes memory of any size, or trusts its arguments.
FORBIDDEN = re.compile(
    r"^_"
    r"|cuda|cudnn|miopen|mkldnn|mps|xpu|vulkan|fbgemm|quant|qscheme|sparse|coo|csr|csc|bsr|bsc|nested"
    r"|storage|resize|as_strided|set_data|^set_$|^set$|share|pin_memory|from_file|save|load"
    r"|^requires_grad_$|retain_grad|^grad$|^get_gradients$|version|names|align|rename"
    r"|^to_here$|^local_value$|^owner|^is_owner$|^confirmed_by_owner$|^wait$|^warn$|^print"
    r"|num_threads|manual_seed|^seed$|^initial_seed$|^dist_|record|profil|^format$|^percentFormat$"
    r"|lstm|gru|rnn|^lift|view_copy|unsafe|infinitely|^Generator|segment_reduce|^sym_|crow|ccol"
    r"|grad_enabled|^fractional_max_pool|backward|^slow_conv|^rsplit$|^center$"
)
# The memory that these return has not been written to.
UNWRITTEN = re.compile(r"empty|^soft_margin_loss$")


class Call(NamedTuple):
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        parts = [_shown(value) for value in self.args]
        parts += [f"{key}={_shown(value)}" for key, value in self.kwargs.items()]
        return f"{self.name}({', '.join(parts)})"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return (
            f"tensor({value.tolist()}, {value.dtype}, {tuple(value.shape)}, {value.requires_grad})"
        )
    return repr(value)


@functools.cache
def operators() -> dict[str, list[torch.FunctionSchema]]:
    """The overloads of each name that a random call may run."""
    found: dict[str, list[Any]] = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "aten" and FORBIDDEN.search(name) is None:
            found.setdefault(name, []).append(schema)
    return dict(sorted(found.items()))


def tensor(random: Random) -> torch.Tensor:
    dtype, shape = random.choice(DTYPES), random.choice(SHAPES)
    if random.random() < 0.4:
        dtype = torch.float32
    count = 1
    for size in shape:
        count *= size
    values = [random.choice([-1, 0, 0, 1, 1, 2, 0.5, 3]) for _ in range(count)]
    made = torch.tensor(values, dtype=torch.float64).reshape(shape).to(dtype)
    if dtype.is_floating_point and count == 1 and random.random() < 0.1:
        made.fill_(random.choice([float("nan"), float("inf")]))
    if len(shape) == 2 and random.random() < 0.2:
        made = made.t()
    if (dtype.is_floating_point or dtype.is_complex) and random.random() < 0.15:
        made.requires_grad_()
    return made


def number(random: Random) -> Any:
    return random.choice(
        [
            True,
            False,
            *INTEGERS,
            *INTEGERS,
            0.5,
            1.0,
            -1.5,
            float("nan"),
            float("inf"),
            1j,
            2**63,
            -(2**70),
        ]
    )


def anything(random: Random) -> Any:
    kinds = [
        lambda: tensor(random),
        lambda: tensor(random),
        lambda: number(random),
        lambda: None,
        lambda: [random.choice(INTEGERS) for _ in range(random.randrange(4))],
        lambda: tuple(random.choice(INTEGERS) for _ in range(random.randrange(4))),
        lambda: [number(random) for _ in range(random.randrange(3))],
        lambda: [tensor(random) for _ in range(random.randrange(3))],
        lambda: random.choice(STRINGS),
        lambda: random.choice(DTYPES),
        lambda: torch.device("cpu"),
        lambda: torch.strided,
        lambda: torch.contiguous_format,
        lambda: torch.nn.Parameter(torch.ones(random.choice([(1,), (2,)]))),
        lambda: object(),
    ]
    return random.choice(kinds)()


def argument(random: Random, kind: str) -> Any:
    """A value of the schema type `kind`, or nearly."""
    if kind.startswith("Optional["):
        return None if random.random() < 0.3 else argument(random, kind[len("Optional[") : -1])
    if kind.startswith("List["):
        inner = kind[len("List[") : -1]
        values = [argument(random, inner) for _ in range(random.choice([0, 1, 1, 2, 2, 3]))]
        return tuple(values) if random.random() < 0.3 else values
    if kind == "Tensor":
        return tensor(random)
    if kind == "int":
        # Integers stand for enums too.
        return random.choice([*INTEGERS, *INTEGERS, True, random.choice(DTYPES)])
    if kind == "float":
        return random.choice([0.0, 0.5, 1.0, 2.0, -1.0, 1, float("nan")])
    if kind == "bool":
        return random.random() < 0.5
    if kind in ("number", "Scalar"):
        return number(random)
    if kind == "str":
        return random.choice(STRINGS)
    if kind == "Device":
        return torch.device("cpu")
    return anything(random)


def call(random: Random, name: str) -> Call:
    schema = random.choice(operators()[name])
    loose = random.random() < 0.3  # not only what the schema says
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in schema.arguments:
        if parameter.has_default_value() and random.random() < 0.6:
            if random.random() < 0.5:
                break
            positional = False
        else:
            positional = not parameter.kwarg_only and not kwargs
        wild = loose and random.random() < 0.3
        value = anything(random) if wild else argument(random, str(parameter.real_type))
        if (
            not wild
            and str(parameter.real_type) in ("int", "float", "bool")
            and random.random() < 0.1
        ):
            value = tensor(random)  # one with one element may stand for a number
        if positional:
            args.append(value)
        else:
            kwargs[parameter.name] = value
    if loose:
        change = random.randrange(6)
        if change == 0 and args:
            args.pop(random.randrange(len(args)))
        elif change == 1:
            args.append(anything(random))
        elif change == 2:
            kwargs["no_such_argument"] = anything(random)
    return Call(name, tuple(args), kwargs)


def calls(seed: int, count: int) -> list[tuple[str, Any]]:
    """`count` pairs of a name and the seed of a call, some names at a time, in any order: what was
    called before must not matter."""
    random = Random(seed)
    names = list(operators())
    few: list[str] = []
    pairs = []
    for index in range(count):
        if index % 20 == 0:
            few = random.sample(names, random.choice((2, 8, 20)))
        pairs.append((random.choice(few), random.randrange(2**62)))
    return pairs


def deadly(seed: int, count: int, progress: Path, timeout: float) -> list[int]:
    """The numbers of the calls with which torch ends the process, spoils its heap or does not come to
    an end, without RPC."""
    # glibc checks each block that is freed; where it has no such library, it says so and goes on.
    checked = {"LD_PRELOAD": "libc_malloc_debug.so.0", "GLIBC_TUNABLES": "glibc.malloc.check=3"}
    found: list[int] = []
    while True:
        first = found[-1] + 1 if found else 0
        ended = subprocess.run(
            [sys.executable, __file__, str(seed), str(first), str(count), str(progress)],
            env={**os.environ, **checked},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if ended.returncode == 0:
            return found
        assert ended.returncode < 0, ended.stderr
        found.append(int(progress.read_text()))


def _call_here(seed: int, first: int, count: int, progress: str) -> None:
    """Makes the calls from number `first` on without RPC, and writes down which one it is at."""
    warnings.simplefilter("ignore")
    with open(progress, "w", buffering=1) as file:
        for index, (name, call_seed) in enumerate(calls(seed, count)):
            if index < first:
                continue
            file.seek(0)
            file.write(f"{index}\n")
            made = call(Random(call_seed), name)
            signal.alarm(SECONDS)  # ends this process
            with contextlib.suppress(Exception):
                getattr(torch.ops.aten, name)(*made.args, **made.kwargs)
        signal.alarm(0)


if __name__ == "__main__":
    _call_here(*map(int, sys.argv[1:4]), sys.argv[4])
