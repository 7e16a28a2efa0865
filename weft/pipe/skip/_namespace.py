"""Tells skips of the same name apart."""

from __future__ import annotations

import abc
import functools
import uuid
from typing import Any


@functools.total_ordering
class Namespace(metaclass=abc.ABCMeta):  # noqa: B024  None is registered as one of its kind
    """Where skip names are looked up; see :meth:`Skippable.isolate`.

    Each instance is a namespace of its own. A copy, deep or pickled, is the same namespace, so the
    layers of a copied model still find each other. Namespaces have an arbitrary total order.
    """

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = uuid.uuid4()

    def __repr__(self) -> str:
        return f"<Namespace {self.id}>"

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and other is not None and self.id == other.id

    def __lt__(self, other: Any) -> bool:
        return isinstance(other, Namespace) and other is not None and self.id < other.id


# Skips that are not isolated have the namespace None, so None counts as a Namespace.
Namespace.register(type(None))
