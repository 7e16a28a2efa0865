"""The environment variables that Weft reads; the table itself is in rpc_backend/core/env.cpp."""

from __future__ import annotations

import os
from typing import NamedTuple

from weft import _C


class Variable(NamedTuple):
    """One row of the table: an environment variable that Weft reads."""

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
    """Names in the environment that begin with ``WEFT_`` and that Weft does not know."""
    return list(_C.unknown_environment())
