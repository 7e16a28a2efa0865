"""One replaced function of torch, and the check that it is still the function Weft was written for."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Patch:
    """Replaces a function of torch if its parameters are the expected ones.

    Otherwise it warns, and torch's function stays; if answers would then be wrong (``refuses``),
    calls that concern Weft raise.

    Attributes:
        target: the replaced function, as ``module:name``.
        expected: its parameters (:func:`parameters`).
        without: what happens when the patch is not applied, a sentence for the warning.
        replacement: the new function; its first argument is torch's.
        refuses: None, or tells whether a call concerns Weft and must raise without the patch.
        aliases: other places where torch offers the same function.
        caller: the function of torch that must look the target up by name at each call.
        uses: other functions of torch that the new one calls, with their parameters.
    """

    target: str
    expected: str
    without: str
    replacement: Function
    refuses: Callable[[], bool] | None = None
    aliases: tuple[str, ...] = ()
    caller: str = ""
    uses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def mismatch(self) -> str:
        """How this torch differs from the one that the patch was written for; empty if it fits."""
        for name, expected in {self.target: self.expected, **self.uses}.items():
            function = _find(name)
            found = " (missing)" if function is None else parameters(function)
            if not fits(found, expected):
                return f"{_dotted(name)} is {found.strip()}, and Weft expects {expected}"
        if self.caller and _last(self.target) not in _names_used(_find(self.caller)):
            return f"{_dotted(self.caller)} does not call {_dotted(self.target)} by name"
        return ""

    def install(self) -> None:
        """Replaces the function; a second time changes nothing."""
        upstream = _find(self.target)
        if getattr(upstream, "_weft_patch", None) is self:
            return
        difference = self.mismatch()
        function = self.replacement
        if difference:
            problem = (
                f"weft: torch {torch.__version__} differs from what Weft knows: {difference}. "
                f"{self.without}"
            )
            warnings.warn(problem, RuntimeWarning, stacklevel=2)
            if self.refuses is None or upstream is None:
                return
            function = functools.partial(self._refuse, problem)
        bound: Any = functools.partial(function, upstream)
        if isinstance(_owner(self.target)[0], type):
            bound = _as_method(bound)
        functools.update_wrapper(bound, upstream, updated=())
        bound._weft_patch = self
        self._put(bound)

    def remove(self) -> None:
        """Puts torch's function back, if the patch is there."""
        function = _find(self.target)
        if getattr(function, "_weft_patch", None) is self:
            self._put(function.__wrapped__)

    def _put(self, function: Function) -> None:
        for place in (self.target, *self.aliases):
            owner, name = _owner(place)
            setattr(owner, name, function)

    def _refuse(self, problem: str, upstream: Function, *args: Any, **kwargs: Any) -> Any:
        if self.refuses is not None and self.refuses():
            raise RuntimeError(problem)
        return upstream(*args, **kwargs)


def patch(target: str, expected: str, **more: Any) -> Callable[[Function], Patch]:
    """Makes a :class:`Patch` whose replacement is the function that it decorates."""
    return lambda replacement: Patch(target, expected, replacement=replacement, **more)


def _owner(target: str) -> tuple[Any, str]:
    """What has the function as an attribute, and the attribute's name."""
    module, _, path = target.partition(":")
    *way, name = path.split(".")
    # By name: torch.distributed has functions named as its modules.
    return functools.reduce(getattr, way, importlib.import_module(module)), name


def _find(target: str) -> Any:
    try:
        return getattr(*_owner(target))
    except (ImportError, AttributeError):
        return None


def _as_method(function: Function) -> Function:
    """A function that a class binds to its instances, as it does not bind a partial."""
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


def _dotted(target: str) -> str:
    return target.replace(":", ".")


def _last(target: str) -> str:
    return target.rpartition(":")[2].rpartition(".")[2]


def _names_used(function: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(function), "__code__", None) if function else None
    return code.co_names if code else ()


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
