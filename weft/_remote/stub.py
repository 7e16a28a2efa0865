"""What TorchScript sees of a remote module: methods with the types of its ``forward``, as source text.

Scripted, they call what is published as ``worker/name``, so another process can load a saved model,
in C++ too. In Python they call as before.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import sys
import types
from typing import Any

from torch import nn
from torch._jit_internal import fake_range
from torch.jit.annotations import ann_to_type

from weft._remote.named_tuples import class_called
from weft._remote.signature import Named, Signature

# The methods use only parameters and names that begin with RESERVED (signature.py), so that a parameter may
# have any other name, such as `like`, `torch` or `List`.
_TEMPLATE = """\
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
import torch as _weft_torch
from torch import Tensor
from torch.distributed.rpc import RRef
from torch.jit import Future

{result_class}
_weft_Args = List[Any]
_weft_Like = List[{result}]

class {class_name}(_Base):
    def forward(self{parameters}) -> {result}:
        if _weft_torch.jit.is_scripting():
            _weft_like: _weft_Like = []
            _weft_args: _weft_Args = [{arguments}]
            return _weft_torch.ops.weft.call(
                self.script_worker, self.script_target, _weft_args, _weft_like,
                names={names}, timeout=self.timeout,
            )
        else:
            return self._call("forward", {by_name})

    @torch.jit.export
    def forward_async(self{parameters}) -> Future[{result}]:
        if _weft_torch.jit.is_scripting():
            _weft_like: _weft_Like = []
            _weft_args: _weft_Args = [{arguments}]
            return _weft_torch.ops.weft.call_async(
                self.script_worker, self.script_target, _weft_args, _weft_like,
                names={names}, timeout=self.timeout,
            )
        else:
            return self._call_async("forward", {by_name})
"""

_count = itertools.count()


class _Names:
    """The names of a signature's NamedTuples in the source that is made of it.

    A NamedTuple that this process has is used itself. For another one the source defines a class of the same
    name and fields, for results; arguments take any tuple of these types.
    """

    def __init__(self, classes: tuple[Named, ...]) -> None:
        self.bound: dict[str, Any] = {}
        self.source = ""
        self._results: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        for one in classes:
            name = one.name.rpartition(".")[2]
            if name in self._results.values():
                name += one.word.rstrip("_")
            self._results[one.word] = self._arguments[one.word] = name
            cls = class_called(one.name)
            fields = tuple(field for field, _ in one.fields)
            if cls is not None and cls._fields == fields and _readable(cls):
                self.bound[name] = cls
                continue
            kinds = [(field, self.in_result(kind)) for field, kind in one.fields]
            lines = "".join(f"    {field}: {kind}\n" for field, kind in kinds)
            self.source += f"\nclass {name}(NamedTuple):\n{lines}\n"
            plain = ", ".join(self.in_argument(kind) for _, kind in one.fields)
            self._arguments[one.word] = f"Tuple[{plain}]"

    def in_result(self, text: str) -> str:
        return self._replaced(text, self._results)

    def in_argument(self, text: str) -> str:
        return self._replaced(text, self._arguments)

    @staticmethod
    def _replaced(text: str, names: dict[str, str]) -> str:
        for word, name in names.items():
            text = text.replace(word, name)
        return text


def _readable(cls: Any) -> bool:
    """Whether TorchScript can read the class inside a container; it cannot if annotations are text."""
    try:
        ann_to_type(list[cls], fake_range())
    except Exception:
        return False
    return True


def _source(signature: Signature, class_name: str, named: _Names) -> str:
    # TorchScript has no keyword-only arguments with defaults, so these may be given by position, too.
    star = not any(
        by_name and default is not None for _, _, default, by_name in signature.parameters
    )
    texts = []
    for name, kind, default, by_name in signature.parameters:
        if by_name and star:
            texts.append("*")
            star = False
        texts.append(
            f"{name}: {named.in_argument(kind)}" + ("" if default is None else f" = {default}")
        )
    names = [name for name, _, _, by_name in signature.parameters if by_name]
    positional = [name for name, _, _, by_name in signature.parameters if not by_name]
    return _TEMPLATE.format(
        class_name=class_name,
        result_class=named.source,
        parameters="".join(f", {text}" for text in texts),
        arguments=", ".join(positional + names),
        by_name=", ".join(positional + [f"{name}={name}" for name in names]),
        names=names if names else None,
        result=named.in_result(signature.result),
    )


def is_subclass(cls: type) -> bool:
    """Whether :func:`subclass` made this class."""
    return cls.__module__.startswith(f"{__name__}_")


@functools.cache
def subclass(signature: Signature, base: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``base`` whose ``forward`` and ``forward_async`` have these types.

    It needs the attributes ``script_worker``, ``script_target`` and ``timeout``.

    Raises:
        RuntimeError: the signature cannot be written in TorchScript; the text says why.
    """
    if signature.problem:
        raise RuntimeError(f"a remote module cannot be scripted: {signature.problem}")
    # TorchScript reads the source of what it compiles, so it must be found by name.
    name = f"{__name__}_{next(_count)}"
    named = _Names(signature.classes)
    source = _source(signature, base.__name__, named)
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    module = types.ModuleType(name)
    module.__dict__["_Base"] = base
    module.__dict__.update(named.bound)
    sys.modules[name] = module
    exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
    return getattr(module, base.__name__)
