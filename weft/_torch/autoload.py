"""The entry point of the group ``torch.backends``: torch calls it at the end of its import.

A failing entry point breaks ``import torch``, and an eager one slows it. So this one throws only where
a variable that asks for Weft is misspelt (the program would run, silently without), and imports Weft
right after ``torch.distributed.rpc``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType

_TRIGGER = "torch.distributed.rpc"


def _import_weft() -> None:
    try:
        import weft  # noqa: F401
    except ValueError:
        raise  # of WEFT_AS_DEFAULT or WEFT_AS_PROCESS_GROUP, which ask for Weft
    except Exception as error:
        print(f"weft: not loaded: {error}", file=sys.stderr)


class _AfterRpc(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Wraps the loader of ``torch.distributed.rpc`` so that Weft follows it."""

    def __init__(self) -> None:
        self._loader: importlib.abc.Loader | None = None

    def find_spec(self, name, path=None, target=None):
        if name != _TRIGGER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        self._loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec):
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        self._loader.exec_module(module)
        module.__spec__.loader = self._loader
        _import_weft()


def load() -> None:
    """Called by torch. Imports Weft now if RPC is already imported, else right after it."""
    try:
        if _TRIGGER in sys.modules:
            _import_weft()
        elif not any(isinstance(finder, _AfterRpc) for finder in sys.meta_path):
            sys.meta_path.insert(0, _AfterRpc())
    except ValueError:
        raise
    except Exception as error:
        print(f"weft: the entry point failed: {error}", file=sys.stderr)
