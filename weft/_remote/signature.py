"""The signature of a module's ``forward`` as TorchScript writes it, found where the module lives."""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._jit_internal import _qualified_name, fake_range
from torch.jit.annotations import ann_to_type

from weft._remote.annotations import field_types, holds_names, is_named_tuple
from weft._remote.named_tuples import class_called, script_name


@dataclass(frozen=True)
class Named:
    """A NamedTuple in a signature.

    Attributes:
        word: stands for it in the texts of types.
        name: TorchScript's name of it where it is defined.
        fields: names and types.
    """

    word: str
    name: str
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Signature:
    """A signature as TorchScript writes it, or why there is none.

    Attributes:
        parameters: of ``forward`` without ``self``: name, type, default as source (or None), and
            whether it can only be given by name.
        result: the result's type.
        classes: the NamedTuples in these types, each behind those that it holds.
        problem: empty, or a sentence that says why it cannot be scripted and what to do.
    """

    parameters: tuple[tuple[str, str, str | None, bool], ...] = ()
    result: str = ""
    classes: tuple[Named, ...] = ()
    problem: str = ""


class _Unscriptable(Exception):
    pass


# Names that the source made of a signature (stub.py) needs for itself begin with this.
RESERVED = "_weft_"

_INSTEAD = (
    "use tensors, numbers, strings, and lists, dicts, tuples and Optionals of them, which other "
    "processes know as well"
)


class _Types:
    """Writes down types, and remembers which NamedTuples were in them."""

    def __init__(self) -> None:
        self.classes: dict[str, Named] = {}

    def text(self, annotation: Any, what: str, where: str) -> str:
        """The annotation as TorchScript writes it; only types that every process knows."""
        if holds_names(annotation):
            return self._text_with_names(annotation, what, where)
        try:
            text = ann_to_type(annotation, fake_range()).annotation_str
        except Exception as error:
            raise _Unscriptable(
                f"the type of {what} of {where} is not one of TorchScript's ({annotation!r}): {error}"
            )
        if _names_class(text):
            raise _Unscriptable(f"the type of {what} of {where} is a class ({text}): {_INSTEAD}")
        return _as_python(text)

    def _text_with_names(self, annotation: Any, what: str, where: str) -> str:
        if is_named_tuple(annotation):
            fields = [
                (name, self.text(kind, f"field '{name}' of {what}", where))
                for name, kind in zip(annotation._fields, field_types(annotation), strict=True)
            ]
            return self.add(annotation, fields)
        origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
        texts = [self.text(one, what, where) for one in inner if one is not type(None)]
        if origin in (typing.Union, types.UnionType) and len(texts) == 1:
            return f"Optional[{texts[0]}]"
        words = {list: "List", dict: "Dict", tuple: "Tuple"}
        if origin not in words or len(texts) != len(inner):
            raise _Unscriptable(
                f"the type of {what} of {where} has a NamedTuple where TorchScript takes none "
                f"({annotation!r}): they may be in lists, dicts, tuples and Optionals"
            )
        return f"{words[origin]}[{', '.join(texts)}]"

    def of_schema(self, kind: Any) -> str:
        """A type of a scripted method."""
        name = kind.kind()
        if name == "TupleType":
            inner = [self.of_schema(one) for one in kind.elements()]
            cls = class_called(kind.annotation_str)
            if cls is not None and len(cls._fields) == len(inner):
                return self.add(cls, list(zip(cls._fields, inner, strict=True)))
            return f"Tuple[{', '.join(inner) or '()'}]"
        if name == "ListType":
            return f"List[{self.of_schema(kind.getElementType())}]"
        if name == "OptionalType":
            return f"Optional[{self.of_schema(kind.getElementType())}]"
        if name == "DictType":
            key = kind.getKeyType().annotation_str
            return f"Dict[{key}, {self.of_schema(kind.getValueType())}]"
        text = _as_python(kind.annotation_str)
        if _names_class(text):
            raise _Unscriptable(f"forward has the class {text} in its signature: {_INSTEAD}")
        return text

    def add(self, cls: Any, fields: list[tuple[str, str]]) -> str:
        """The word for this NamedTuple."""
        name = script_name(cls)
        if name not in self.classes:
            self.classes[name] = Named(f"_Named{len(self.classes)}_", name, tuple(fields))
        return self.classes[name].word


def _names_class(text: str) -> bool:
    """Whether TorchScript's text of a type has a class: one of the user's, or one that no call carries."""
    return re.search(r"__torch__|\b(Generator|Stream)\b", text) is not None


def _as_python(text: str) -> str:
    """TorchScript's text of a type, as Python reads it."""
    for word, python in (("NoneType", "None"), ("Device", "torch.device")):
        text = re.sub(rf"\b{word}\b", python, text)
    return text


def _default_text(value: Any, name: str, where: str) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        parts = (_default_text(part, name, where) for part in (value.real, value.imag))
        return f"complex({', '.join(parts)})"
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if value is None or isinstance(value, (bool, torch.dtype)):
        return repr(value)
    for kind in (int, float, str):
        if isinstance(value, kind):
            # As the plain type, because the repr of an IntEnum or a NumPy number names its class.
            return kind.__repr__(value)
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


def _from_schema(module: torch.jit.ScriptModule) -> Signature:
    schema = module._c._get_method("forward").schema
    written = _Types()
    rows = tuple(
        (
            argument.name,
            written.of_schema(argument.type),
            _default_text(argument.default_value, argument.name, "forward")
            if argument.has_default_value()
            else None,
            bool(argument.kwarg_only),
        )
        for argument in schema.arguments[1:]
    )
    _check_names([name for name, *_ in rows], "forward")
    returned = schema.returns[0].type
    if isinstance(returned, torch.FutureType):  # the caller gets what it holds
        returned = returned.getElementType()
    result = written.of_schema(returned)
    return Signature(rows, result, tuple(written.classes.values()))


def _from_signature(module: nn.Module) -> Signature:
    function = type(module).forward
    where = f"{_qualified_name(type(module), mangle_name=False)}.forward"
    hints = typing.get_type_hints(function)
    written = _Types()
    rows = []
    for parameter in inspect.signature(module.forward).parameters.values():
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _Unscriptable(
                f"{where} takes *{name}, which TorchScript does not know: name its arguments"
            )
        # As in TorchScript, what has no annotation is a tensor.
        kind = written.text(hints.get(name, torch.Tensor), f"'{name}'", where)
        default = None
        if is_named_tuple(type(parameter.default)):  # written down, it would be a plain tuple
            raise _Unscriptable(
                f"the default of '{name}' of {where} is a NamedTuple: make it None and its type "
                "Optional, and fill it in inside"
            )
        if parameter.default is not parameter.empty:
            default = _default_text(parameter.default, name, where)
        rows.append((name, kind, default, parameter.kind is parameter.KEYWORD_ONLY))
    _check_names([name for name, *_ in rows], where)
    _check_order(rows, where)
    if "return" not in hints:
        raise _Unscriptable(
            f"{where} does not say what it returns: annotate it, e.g. `-> torch.Tensor`"
        )
    result = written.text(hints["return"], "the result", where)
    return Signature(tuple(rows), result, tuple(written.classes.values()))


def _check_names(names: list[str], where: str) -> None:
    taken = [name for name in names if name == "self" or name.startswith(RESERVED)]
    if taken:
        raise _Unscriptable(
            f"{where} has a parameter called '{taken[0]}', a name that the remote call needs for itself: "
            "give the parameter another name"
        )


def _check_order(rows: list[tuple[str, str, str | None, bool]], where: str) -> None:
    defaults = [default is not None for *_, default, _ in rows]
    by_name = [name for name, _, default, only in rows if only and default is not None]
    if by_name and defaults != sorted(defaults):
        raise _Unscriptable(
            f"TorchScript has no keyword-only arguments with defaults: in {where}, put "
            f"{', '.join(by_name)} last, behind those without a default"
        )


def signature_of(module: nn.Module) -> Signature:
    """The signature of a module that lives here. Never raises; the result says what is wrong."""
    try:
        if isinstance(module, torch.jit.ScriptModule):
            return _from_schema(module)
        return _from_signature(module)
    except Exception as error:  # annotations are any expressions, and a NamedTuple may hold itself
        return Signature(problem=str(error) or repr(error))
