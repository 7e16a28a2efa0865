"""The parameters of a function as one line of text, to compare torch's with what Weft expects."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any


def parameters(function: Callable[..., Any]) -> str:
    """The parameters without their types, such as ``(to, timeout=-1.0)``.

    Types are left out because torch annotates functions from one version to the next. For a
    function of pybind11 the first line of its docstring tells the parameters.
    """
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return _from_docstring(function.__doc__ or "")
    return str(inspect.Signature([one.replace(annotation=one.empty) for one in found]))


def _from_docstring(text: str) -> str:
    line = re.match(r"\w+\((.*)\)(?: ->.*)?$", text.partition("\n")[0])
    if line is None:
        return "(unknown)"
    parts = re.split(r", (?![^\[]*\])", line[1])  # a comma inside brackets belongs to a type
    plain = [re.sub(r":.*?(?: (=) |$)", r"\1", part) for part in parts]
    return f"({', '.join(plain)})"


def fits(found: str, expected: str) -> bool:
    """Whether ``found`` is what was expected; ``...`` at the end stands for any further parameters."""
    beginning = expected.removesuffix(", ...)")
    if beginning == expected:
        return found == expected
    return found.startswith((f"{beginning},", f"{beginning})"))
