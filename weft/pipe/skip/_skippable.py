"""The modules that stash and pop, and the decorator that makes them.

The contract is that of torch/distributed/pipeline/sync/skip/skippable.py in PyTorch 2.3.1. Beyond
it, ``forward`` may take any arguments, integer tensors and None pass like others, a decorated class
can be copied and pickled, and a wrong command raises at the ``yield`` that gave it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Any, ClassVar

from torch import Tensor, nn
from typing_extensions import Self

from weft.pipe.skip import _store
from weft.pipe.skip._namespace import Namespace
from weft.pipe.skip._store import SkipKey


@dataclasses.dataclass(eq=False, slots=True)
class stash:
    """``yield stash(name, tensor)`` hands a tensor, or None, to the layer that pops the name.

    Args:
        name: one that the layer declares: ``@skippable(stash=[name])``.
        tensor: what is handed on.
    """

    name: str
    tensor: Tensor | None

    def __repr__(self) -> str:
        return f"stash({self.name!r})"


@dataclasses.dataclass(eq=False, slots=True)
class pop:
    """``tensor = yield pop(name)`` receives what an earlier layer stashed under that name.

    Args:
        name: one that the layer declares: ``@skippable(pop=[name])``.
    """

    name: str

    def __repr__(self) -> str:
        return f"pop({self.name!r})"


def _names(given: Iterable[str], what: str) -> frozenset[str]:
    # A lone string is an iterable of strings too; nobody means that.
    if isinstance(given, str):
        raise TypeError(f"{what} takes a list of names, not the string {given!r}")
    return frozenset(given)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


class Skippable(nn.Module):
    """The base of the classes that :func:`skippable` makes; ``module`` is the decorated module."""

    module_cls: ClassVar[type[nn.Module]]
    stashable_names: ClassVar[frozenset[str]]
    poppable_names: ClassVar[frozenset[str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.module_cls(*args, **kwargs)
        self.namespaces: dict[str, Namespace] = {}

    def __repr__(self) -> str:
        return f"@skippable({self.module})"

    def namespaced(self, name: str) -> SkipKey:
        """The name with the namespace that isolates it, or None."""
        return self.namespaces.get(name), name

    def stashable(self) -> Iterable[SkipKey]:
        """What this module stashes, by name."""
        return [self.namespaced(name) for name in sorted(self.stashable_names)]

    def poppable(self) -> Iterable[SkipKey]:
        """What this module pops, by name."""
        return [self.namespaced(name) for name in sorted(self.poppable_names)]

    def isolate(self, ns: Namespace, *, only: Iterable[str] | None = None) -> Self:
        """Puts all skips of this module, or `only` these, in a namespace; returns the module.

        Layers that use the same names need it when they are several in one model: each pair of
        stash and pop in a namespace of its own. Names that the module does not declare are ignored.
        """
        declared = self.stashable_names | self.poppable_names
        for name in declared if only is None else _names(only, "isolate(only=…)"):
            self.namespaces[name] = ns
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module and the commands that it yields.

        Raises:
            RuntimeError: a skip is not declared, is declared and not stashed or popped, or no
                earlier layer stashed it.
        """
        waiting = {key[1]: _store.take(key) for key in self.poppable()}
        stashed: dict[str, Tensor | None] = {}
        output = self._run(self.module(*args, **kwargs), stashed, waiting)
        if missing := self.stashable_names - stashed.keys():
            raise RuntimeError(f"{_quoted(missing)} must be stashed but have not")
        if waiting:
            raise RuntimeError(f"{_quoted(waiting)} must be popped but have not")
        for key in self.stashable():
            _store.put(key, stashed[key[1]])
        return output

    def _run(
        self, result: Any, stashed: dict[str, Tensor | None], waiting: dict[str, Tensor | None]
    ) -> Any:
        """Runs the commands of a ``forward`` that yields; any other result passes through."""
        if not isinstance(result, Generator):
            return result
        try:
            command = next(result)
            while True:
                try:
                    answer = self._obey(command, stashed, waiting)
                except (RuntimeError, TypeError) as error:
                    # Raised at the yield, so that the traceback names the user's line.
                    command = result.throw(error)
                else:
                    command = result.send(answer)
        except StopIteration as stop:
            return stop.value

    def _obey(
        self, command: Any, stashed: dict[str, Tensor | None], waiting: dict[str, Tensor | None]
    ) -> Tensor | None:
        if isinstance(command, stash):
            if command.name not in self.stashable_names:
                raise RuntimeError(f"'{command.name}' has not been declared as stashable")
            stashed[command.name] = command.tensor
            return None
        if isinstance(command, pop):
            if command.name not in self.poppable_names:
                raise RuntimeError(f"'{command.name}' has not been declared as poppable")
            if command.name not in waiting:
                raise RuntimeError(
                    f"'{command.name}' has been popped already; a skip is popped once"
                )
            return waiting.pop(command.name)
        raise TypeError(f"{command!r} is not a command from @skippable; yield stash(…) or pop(…)")


def _reachable(cls: type) -> bool:
    """Whether the class's name refers to it; while a decorator runs it does not yet."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def skippable(
    stash: Iterable[str] = (), pop: Iterable[str] = ()
) -> Callable[[type[nn.Module]], type[Skippable]]:
    """Decorates a module class that stashes and pops the skips of these names.

    Every skip has exactly one stash and one pop, the stash in an earlier layer; a Pipe checks it
    with :func:`verify_skippables`.

    Args:
        stash: the names of the skips that the layer stashes.
        pop: the names of those that it pops.

    Raises:
        TypeError: ``stash`` or ``pop`` is a string instead of a list of names.
    """
    stashable, poppable = _names(stash, "stash"), _names(pop, "pop")

    def extend(module_cls: type[nn.Module]) -> type[Skippable]:
        attributes = {
            "__module__": module_cls.__module__,
            "__qualname__": module_cls.__qualname__,
            "__doc__": module_cls.__doc__,
            "module_cls": module_cls,
            "stashable_names": stashable,
            "poppable_names": poppable,
        }
        if not _reachable(module_cls):
            # The decorated name will refer to the new class, and pickle looks classes up by name: it
            # finds the old class as an attribute of the new one.
            module_cls.__qualname__ += ".module_cls"
        return type(module_cls.__name__, (Skippable,), attributes)

    return extend
