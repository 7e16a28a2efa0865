"""Results of published Python code: what would arrive as something else is refused at the owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft import _C
from weft._remote.named_tuples import DTYPE, part_of_item, part_of_result

_AS_TENSOR = "return a tensor: torch.frombuffer(value, dtype=torch.uint8)"
_AS_TEXT = "return its text: str(value)"
#: What TorchScript makes strings or numbers of, and what to return instead.
_INSTEAD: dict[type, str] = {
    bytes: _AS_TENSOR,
    bytearray: _AS_TENSOR,
    torch.layout: _AS_TEXT,
    torch.qscheme: _AS_TEXT,
}

_REFUSED = (*_INSTEAD, torch.dtype)


def checked(function: Callable[..., Any], annotated: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose results are refused if the caller would get other values than they are.

    A dtype may be in the result where the annotation of ``annotated`` says so: the caller gets it back.
    """
    part = part_of_result(annotated)

    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if type(result) is not torch.Tensor:
            _check_all(result, part)
            if isinstance(result, tuple) and len(result) == 3 and _is_mark(result[0]):
                raise ValueError(
                    f"a tuple that begins with '{_C._NAMES_MARK}' cannot be returned to another "
                    "worker: Weft sends the names of NamedTuples in such tuples; return a list"
                )
        return result

    return run


def _is_mark(value: Any) -> bool:
    return isinstance(value, str) and value == _C._NAMES_MARK


def _check_all(result: Any, part: Any) -> None:
    try:
        _check(result, part)
    except RecursionError:
        return  # it is deeper than what can be sent: the conversion to TorchScript's values says so


def _check(value: Any, part: Any) -> None:
    if isinstance(value, _REFUSED) and not (part == DTYPE and isinstance(value, torch.dtype)):
        texts = (text for kind, text in _INSTEAD.items() if isinstance(value, kind))
        instead = next(texts, "annotate the result with torch.dtype")
        raise TypeError(
            f"a {type(value).__name__} cannot be returned to another worker as it is: {instead}"
        )
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, part_of_item(part, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            _check(key, None)
            _check(item, part_of_item(part, 0))
