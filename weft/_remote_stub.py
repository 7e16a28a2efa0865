"""What TorchScript sees of a remote module: methods with the types of its ``forward``, as source text
made from the signature there.

Scripted, they call what is published as ``worker/name``, so a saved model can be loaded by another
process, in C++ too. In Python they call as before.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import sys
import types
import typing
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._jit_internal import _qualified_name
from torch.jit.annotations import ann_to_type

from weft._named_tuples import field_types, is_named_tuple, without_names

_TEMPLATE = """\
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.jit import Future

{result_class}

class {class_name}(_Base):
    def forward(self{parameters}) -> {result}:
        if torch.jit.is_scripting():
            like: List[{result}] = []
            args: List[Any] = [{arguments}]
            return torch.ops.weft.call(
                self.script_worker, self.script_target, args, like,
                names={names}, timeout=self.timeout,
            )
        else:
            return self._call("forward", {by_name})

    @torch.jit.export
    def forward_async(self{parameters}) -> Future[{result}]:
        if torch.jit.is_scripting():
            like: List[{result}] = []
            args: List[Any] = [{arguments}]
            return torch.ops.weft.call_async(
                self.script_worker, self.script_target, args, like,
                names={names}, timeout=self.timeout,
            )
        else:
            return self._call_async("forward", {by_name})
"""

_count = itertools.count()


@dataclass(frozen=True)
class Stub:
    """A signature as TorchScript writes it, or why there is none.

    Attributes:
        parameters: of ``forward`` without ``self``: name, type, default as source (or None), and
            whether it can only be given by name.
        result: the result's type.
        fields: names and types of the result's elements, where it is a NamedTuple of the name `result`.
        problem: empty, or a sentence that says why it cannot be scripted and what to do.
    """

    parameters: tuple[tuple[str, str, str | None, bool], ...] = ()
    result: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    problem: str = ""


class _Unscriptable(Exception):
    pass


def _type_text(annotation: Any, what: str, where: str) -> str:
    """The annotation as TorchScript writes it; only types that every process knows."""
    try:
        text = ann_to_type(without_names(annotation), None).annotation_str
    except Exception as error:
        raise _Unscriptable(
            f"the type of {what} of {where} is not one of TorchScript's ({annotation!r}): {error}"
        )
    if "__torch__" in text:
        raise _Unscriptable(
            f"the type of {what} of {where} is a class ({text}): use tensors, numbers, strings, and "
            "lists, dicts, tuples and Optionals of them, which other processes know as well"
        )
    return text


def _default_text(value: Any, name: str, where: str) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, tuple):
        inner = [_default_text(item, name, where) for item in value]
        return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
    if isinstance(value, (list, dict)):
        raise _Unscriptable(
            f"the default of '{name}' of {where} is a {type(value).__name__}, and TorchScript takes no "
            "mutable defaults: make it None and its type Optional, and fill it in inside"
        )
    raise _Unscriptable(
        f"the default of '{name}' of {where} ({value!r}) cannot be written down for TorchScript: use "
        "None, a number, a string, or a tuple of them"
    )


def _schema_type_text(kind: Any) -> str:
    """A type of a scripted method, with plain tuples for NamedTuples."""
    name = kind.kind()
    if name == "TupleType":
        inner = ", ".join(_schema_type_text(one) for one in kind.elements())
        return f"Tuple[{inner or '()'}]"
    if name == "ListType":
        return f"List[{_schema_type_text(kind.getElementType())}]"
    if name == "OptionalType":
        return f"Optional[{_schema_type_text(kind.getElementType())}]"
    if name == "DictType":
        return f"Dict[{kind.getKeyType().annotation_str}, {_schema_type_text(kind.getValueType())}]"
    text = kind.annotation_str
    if "__torch__" in text:
        raise _Unscriptable(
            f"forward has the class {text} in its signature: use tensors, numbers, strings, and lists, "
            "dicts, tuples and Optionals of them, which other processes know as well"
        )
    return text


def _from_schema(module: torch.jit.ScriptModule) -> Stub:
    schema = module._c._get_method("forward").schema
    rows = tuple(
        (
            argument.name,
            _schema_type_text(argument.type),
            _default_text(argument.default_value, argument.name, "forward")
            if argument.has_default_value()
            else None,
            bool(argument.kwarg_only),
        )
        for argument in schema.arguments[1:]
    )
    return Stub(rows, _schema_type_text(schema.returns[0].type))


def _from_signature(module: nn.Module) -> Stub:
    function = type(module).forward
    where = f"{_qualified_name(type(module), mangle_name=False)}.forward"
    hints = typing.get_type_hints(function)
    rows = []
    for parameter in itertools.islice(inspect.signature(function).parameters.values(), 1, None):
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _Unscriptable(
                f"{where} takes *{name}, which TorchScript does not know: name its arguments"
            )
        # As in TorchScript, what has no annotation is a tensor.
        kind = _type_text(hints.get(name, torch.Tensor), f"'{name}'", where)
        default = None
        if parameter.default is not parameter.empty:
            default = _default_text(parameter.default, name, where)
        rows.append((name, kind, default, parameter.kind is parameter.KEYWORD_ONLY))
    _check_order(rows, where)
    if "return" not in hints:
        raise _Unscriptable(
            f"{where} does not say what it returns: annotate it, e.g. `-> torch.Tensor`"
        )
    result = hints["return"]
    if not is_named_tuple(result):
        return Stub(tuple(rows), _type_text(result, "the result", where))
    fields = tuple(
        (name, _type_text(kind, f"field '{name}' of the result", where))
        for name, kind in zip(result._fields, field_types(result), strict=True)
    )
    return Stub(tuple(rows), result.__name__, fields)


def _check_order(rows: list[tuple[str, str, str | None, bool]], where: str) -> None:
    defaults = [default is not None for *_, default, _ in rows]
    by_name = [name for name, _, default, only in rows if only and default is not None]
    if by_name and defaults != sorted(defaults):
        raise _Unscriptable(
            f"TorchScript has no keyword-only arguments with defaults: in {where}, put "
            f"{', '.join(by_name)} last, behind those without a default"
        )


def stub_of(module: nn.Module) -> Stub:
    """The stub of a module that lives here. Never raises: what is wrong is told to the caller."""
    try:
        if isinstance(module, torch.jit.ScriptModule):
            return _from_schema(module)
        return _from_signature(module)
    except (_Unscriptable, NameError, TypeError) as error:
        return Stub(problem=str(error))


def _source(stub: Stub, class_name: str) -> str:
    # TorchScript has no keyword-only arguments with defaults: such may be given by position, too.
    star = not any(by_name and default is not None for _, _, default, by_name in stub.parameters)
    texts = []
    for name, kind, default, by_name in stub.parameters:
        if by_name and star:
            texts.append("*")
            star = False
        texts.append(f"{name}: {kind}" + ("" if default is None else f" = {default}"))
    names = [name for name, _, _, by_name in stub.parameters if by_name]
    positional = [name for name, _, _, by_name in stub.parameters if not by_name]
    fields = "".join(f"    {name}: {kind}\n" for name, kind in stub.fields)
    return _TEMPLATE.format(
        class_name=class_name,
        result_class=f"\nclass {stub.result}(NamedTuple):\n{fields}" if stub.fields else "",
        parameters="".join(f", {text}" for text in texts),
        arguments=", ".join(positional + names),
        by_name=", ".join(positional + [f"{name}={name}" for name in names]),
        names=names if names else None,
        result=stub.result,
    )


@functools.cache
def subclass(stub: Stub, base: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``base`` whose ``forward`` and ``forward_async`` have these types.

    It needs the attributes ``script_worker``, ``script_target`` and ``timeout``.

    Raises:
        RuntimeError: the signature cannot be written in TorchScript; the text says why.
    """
    if stub.problem:
        raise RuntimeError(f"a remote module cannot be scripted: {stub.problem}")
    # TorchScript reads the source of what it compiles, so it must be found by name.
    name = f"weft._remote_stub_{next(_count)}"
    source = _source(stub, base.__name__)
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    module = types.ModuleType(name)
    module.__dict__["_Base"] = base
    sys.modules[name] = module
    exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
    return getattr(module, base.__name__)
