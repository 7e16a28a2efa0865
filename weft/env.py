"""The environment variables that Weft reads; the table itself is in rpc_backend/options/env.cpp."""

from __future__ import annotations

import os
from typing import NamedTuple

from weft import _C

__all__ = ["Variable", "table", "unknown"]


class Variable(NamedTuple):
    """One row of the table: an environment variable that Weft reads.

    ::

        from weft import env

        changed = {row.name: row.value for row in env.table() if row.value not in (None, row.default)}

    Attributes:
        name: of the variable.
        default: what holds when it is unset.
        meaning: a sentence.
        value: its value now; None when it is unset.
    """

    name: str
    default: str
    meaning: str
    value: str | None


def table() -> list[Variable]:
    """Every variable that Weft reads, with its present value (None when unset).

    ::

        from weft import env

        print([row.name for row in env.table() if row.value is not None])
    """
    return [
        Variable(name, default, meaning, os.environ.get(name))
        for name, default, meaning in _C.environment()
    ]


def unknown() -> list[str]:
    """Names in the environment that begin with ``WEFT_`` and that Weft does not know.

    ::

        from weft import env

        for name in env.unknown():
            print(f"{name} is not a variable that Weft knows")
    """
    return list(_C.unknown_environment())
